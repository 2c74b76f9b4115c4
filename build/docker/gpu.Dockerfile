# The GPU services of docker-compose.yml: one image builds the engines and serves them, so that TensorRT is the same.
# The base has Triton and torch built for the same CUDA. Its TensorRT 10.13 is too old for the engines here: a later one is
# installed beside it (requirements/gpu.txt), whose libraries come from NVIDIA's index. The code is mounted, not copied.
FROM nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN mkdir /engines && chown 1000:1000 /engines
COPY requirements/gpu.txt /tmp/requirements/
# An environment over the image's packages, which stay as they are: its torch and TensorRT were built against them.
# Ubuntu's python3 has no ensurepip, so the image's pip installs into it.
RUN python3 -m pip list --format=freeze | grep '^numpy==' > /tmp/requirements/kept.txt \
 && python3 -m venv --without-pip --system-site-packages /opt/dspark \
 && python3 -m pip --python /opt/dspark/bin/python install --no-cache-dir \
    -c /tmp/requirements/kept.txt -r /tmp/requirements/gpu.txt
COPY --chmod=755 build/docker/dspark /usr/local/bin/dspark
# Triton's model processes are isolated Pythons, which ignore PYTHONPATH; they do read .pth files.
COPY build/docker/dspark.pth /opt/dspark/lib/python3.12/site-packages/
ENV PATH=/opt/dspark/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 DSPARK_HOME=/engines HOME=/tmp
WORKDIR /dspark
USER 1000:1000
ENTRYPOINT ["dspark"]
CMD ["serve", "--host", "0.0.0.0", "--engine", "tensorrt"]
