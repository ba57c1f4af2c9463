// Package adminapi compares the answers of the admin API with its document, by a JSON Schema library that knows nothing
// of emitd: what a generator of clients would find in the document is what a client gets.
package adminapi
