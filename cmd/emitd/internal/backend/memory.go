package backend

import "github.com/emitd/emitd/storage/memory"

// Memory returns a store in the memory of this process, for emitd dev --ephemeral.
func Memory() *Store {
	return &Store{Store: memory.Open(memory.Config{}), Kind: "memory", close: func() error { return nil }}
}
