SwaggerUIBundle({
  url: "/openapi.yaml",
  dom_id: "#contract",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  docExpansion: "list",
  persistAuthorization: false,
  syntaxHighlight: false,
  tryItOutEnabled: true,
  validatorUrl: null,
});
