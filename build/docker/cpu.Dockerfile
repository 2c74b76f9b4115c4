# The CPU services of docker-compose.yml. Two stages: `serve` holds what a server imports, `build` adds torch.
# The code itself is mounted, not copied: the same checkout that runs without Docker.
FROM python:3.11.13-slim-bookworm AS serve
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN useradd --create-home --uid 1000 dspark && mkdir /engines && chown 1000:1000 /engines
COPY requirements/serve.txt requirements/triton.txt /tmp/requirements/
RUN pip install --no-cache-dir -r /tmp/requirements/serve.txt \
 && pip install --no-cache-dir --no-deps -r /tmp/requirements/triton.txt
COPY python_models /tmp/dspark/python_models
COPY client /tmp/dspark/client
# Triton's model process is put beside its backend now: later the file system is read-only.
RUN PYTHONPATH=/tmp/dspark/python_models:/tmp/dspark/client \
    python -c 'from dspark_client.triton import find_triton; find_triton()' && rm -r /tmp/dspark
COPY --chmod=755 build/docker/dspark /usr/local/bin/dspark
# Triton's model processes are isolated Pythons, which ignore PYTHONPATH; they do read .pth files.
COPY build/docker/dspark.pth /usr/local/lib/python3.11/site-packages/
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 DSPARK_HOME=/engines HOME=/tmp
WORKDIR /dspark
USER 1000:1000
ENTRYPOINT ["dspark"]
CMD ["serve", "--host", "0.0.0.0"]

FROM serve AS build
# The CPU build of torch, where PIP_EXTRA_INDEX_URL names an index that has it; else what the default index offers.
ARG PIP_EXTRA_INDEX_URL
USER 0:0
COPY requirements/build.txt /tmp/requirements/
# Together, or what building needs would replace the numpy that Triton's client needs.
RUN pip install --no-cache-dir -r /tmp/requirements/serve.txt -r /tmp/requirements/build.txt
USER 1000:1000
