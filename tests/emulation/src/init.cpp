// The first process of the emulated machine: runs /check with what the boot loader passed on, and once more with tiles
// refused, then turns the machine off.
#include <sys/reboot.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace {

int run(char *const *arguments) {
    const pid_t child = fork();
    if (child == 0) {
        execv("/check", arguments);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int main(int, char **arguments) {
    char refused[] = "refused";
    char *again[] = {arguments[0], refused, nullptr};
    const int status = run(arguments), other = run(again);
    std::printf("the check ended with status %d\n", status ? status : other);
    std::fflush(stdout);
    sleep(1);
    reboot(RB_POWER_OFF);
}
