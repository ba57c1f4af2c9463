package backend

import "github.com/emitd/emitd/storage/memory"

// Memory returns a store of this process alone, for emitd dev --ephemeral.
func Memory() *Store {
	return &Store{Store: memory.Open(memory.Config{}), Kind: "memory", close: func() error { return nil }}
}
