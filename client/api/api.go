// Package api has the types that oapi-codegen generates from payonce's contract, of what
// package client sends and reads.
package api

//go:generate go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2 -config generate.yaml ../../internal/httpapi/openapi.yaml
