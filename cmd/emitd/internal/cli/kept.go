package cli

import (
	"bytes"
	"context"
	"sync"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
)

// keptStore is a store that stays open from one read to the next.
type keptStore struct{ store *backend.Store }

// close closes the store, so that the next read opens it again.
func (k *keptStore) close() {
	if k.store != nil {
		k.store.Close()
		k.store = nil
	}
}

// openToRead opens the store for one read, or takes the one that a repeated read keeps open. The caller calls end.
func (a *app) openToRead(ctx context.Context, cfg *config.Loaded) (s *backend.Store, end func(), err error) {
	k := a.kept
	if k != nil && k.store != nil {
		return k.store, func() {}, nil
	}
	if s, err = a.open(ctx, cfg); err != nil {
		return nil, nil, err
	}
	if k != nil {
		k.store = s
		return s, func() {}, nil
	}
	return s, func() { s.Close() }, nil
}

// talk takes what is written to standard error while the terminal is drawn on, at most the first talkSize bytes since
// it was taken.
type talk struct {
	mu sync.Mutex
	b  bytes.Buffer
}

const talkSize = 16 << 10

// Write implements io.Writer.
func (t *talk) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b.Write(p[:min(len(p), talkSize-t.b.Len())])
	return len(p), nil
}

// take empties the buffer.
func (t *talk) take() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.b.Reset()
	return t.b.String()
}
