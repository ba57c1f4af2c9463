package admin

import (
	_ "embed"
	"net/http"
	"reflect"
)

// document describes the API in OpenAPI 3.1. A test makes it from the operations, their types and the comments of these:
// go test ./coordinator/admin -update.
//
//go:embed openapi.json
var document []byte

// documentOperation is the call that returns the document.
func documentOperation() operation {
	return operation{
		name: "getDocument", method: http.MethodGet, path: "/openapi.json", summary: "This document", in: reflect.TypeFor[struct{}](),
		serve: func(_ *API, w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(document) // an error means that the caller has gone
			return nil
		},
	}
}
