package sqlite

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage/storagetest"
)

// TestConformance runs the suite of every backend with two handles on one file, like two processes,
// and a clock that stands still until it is moved.
func TestConformance(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, storagetest.Factory{Open: openBackend, Runs: 30})
}

func openBackend(t testing.TB) storagetest.Backend {
	t.Helper()
	clock := newTestClock()
	cfg := Config{Path: filepath.Join(t.TempDir(), "store.db"), Now: clock.Now, QueryTimeout: time.Minute, WatchInterval: 2 * time.Millisecond}
	first := mustOpen(t, cfg)
	db := userDB(t, first.Path())
	return storagetest.Backend{
		Store: first, Second: mustOpen(t, cfg),
		Advance: clock.Advance, Frozen: true, SerialWriters: true,
		InTx: func(ctx context.Context, f daemon.Fence, fn func(context.Context) error) error {
			return first.InTx(ctx, db, f, func(*sql.Tx) error { return fn(ctx) })
		},
		WriteState: func(t testing.TB, u daemon.Unit, s daemon.State) {
			t.Helper()
			if _, err := db.ExecContext(context.Background(), "UPDATE emitd_unit SET state = ? WHERE daemon = ? AND idx = ?", s, u.Daemon, u.Index); err != nil {
				t.Fatal(err)
			}
		},
		ChangeIdentity: func(t testing.TB) { replace(t, first, copyOf(t, first)) },
	}
}
