# The gateway: the gRPC front and the tokenizer, no torch. The model comes from a volume.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/venv
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY services services
COPY gateway gateway
COPY tandem tandem
RUN /opt/venv/bin/pip install --no-cache-dir --constraint constraints.txt ".[gateway]" \
    && /opt/venv/bin/pip uninstall --yes --quiet setuptools pip

FROM python:3.11-slim-bookworm
RUN groupadd --gid 10001 tandem \
    && useradd --uid 10001 --gid tandem --no-create-home --shell /usr/sbin/nologin tandem \
    && install --directory --owner tandem --group tandem --mode 0700 /run/tandem /keys
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 TANDEM_LINKS_RUN_DIR=/run/tandem TANDEM_GATEWAY_LISTEN=0.0.0.0:50051
EXPOSE 50051
USER 10001:10001
HEALTHCHECK --interval=5s --timeout=5s --start-period=10s --retries=3 CMD ["python", "-m", "gateway.probe"]
ENTRYPOINT ["python", "-m", "gateway"]
