# A CPU image with the package, its server and the bundled model.
#   docker build -t adlm . && docker run --rm -p 8000:8000 -e ADLM_KEY=secret adlm
FROM python:3.12-slim
WORKDIR /app
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY adlm adlm
COPY adlm_studies adlm_studies
RUN pip install --no-cache-dir "$(grep ^torch== constraints.txt)" \
        --index-url https://download.pytorch.org/whl/cpu \
    && pip install --no-cache-dir --constraint constraints.txt '.[eval,serve]'
RUN useradd --create-home adlm
USER adlm
WORKDIR /home/adlm
EXPOSE 8000
ENTRYPOINT ["adlm"]
CMD ["serve", "box", "--host", "0.0.0.0"]
