// Package adminapi compares the answers of the admin API with its document, by a JSON Schema library that knows nothing
// of emitd: what a generator of clients would find in the document is what a client gets. It also calls a cluster of
// processes of which some have died.
package adminapi
