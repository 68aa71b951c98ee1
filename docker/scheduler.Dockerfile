# The scheduler: no torch, no grpc, no model.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/venv
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY services services
COPY gateway gateway
COPY tandem tandem
RUN /opt/venv/bin/pip install --no-cache-dir --constraint constraints.txt ".[scheduler]" \
    && /opt/venv/bin/pip uninstall --yes --quiet setuptools pip

FROM python:3.11-slim-bookworm
RUN groupadd --gid 10001 tandem \
    && useradd --uid 10001 --gid tandem --no-create-home --shell /usr/sbin/nologin tandem \
    && install --directory --owner tandem --group tandem --mode 0700 /run/tandem /keys
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 TANDEM_LINKS_RUN_DIR=/run/tandem
USER 10001:10001
HEALTHCHECK --interval=5s --timeout=5s --start-period=10s --retries=3 CMD ["python", "-m", "services.runtime.process", "scheduler"]
ENTRYPOINT ["python", "-m", "services.scheduler"]
