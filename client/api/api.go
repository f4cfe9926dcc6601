// Package api is the client that oapi-codegen generates from payonce's contract: every
// request and type of it. Package client makes its retries safe.
package api

//go:generate go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2 -config generate.yaml ../../internal/httpapi/openapi.yaml
