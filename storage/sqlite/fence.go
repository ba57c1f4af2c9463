package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/storage"
)

// tellWait is how long a stamp may wait for the write lock before it is told as an event.
const tellWait = time.Second

// Stamp implements [storage.Store]. It waits for every transaction that writes, among them those
// that hold the fence. A stamp that is already there costs no write.
func (s *Store) Stamp(ctx context.Context, f daemon.Fence) error {
	err := s.call(ctx, "stamp", func(st *step) error {
		held := st.Fence(f.Unit)
		if held >= f.Generation {
			return st.checkFence(f)
		}
		st.exec(`INSERT OR REPLACE INTO ~fence (daemon, idx, generation, stamped_at) VALUES (?, ?, ?, ?)`,
			f.Unit.Daemon, f.Unit.Index, f.Generation, nanos(st.now))
		if st.waited > tellWait {
			st.Emit(daemon.Event{
				Kind: daemon.FenceWaiting, Daemon: f.Unit.Daemon, Unit: f.Unit, Generation: f.Generation,
				Reason: fmt.Sprintf("waited %v for the write lock of the file", st.waited.Round(time.Millisecond)),
			}, st.now)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("stamp %s: %w", f, err)
	}
	return nil
}

// Fence checks, inside the caller's own transaction on the store's file, that the run which f
// names is the one that has stamped its unit last; otherwise a daemon.StaleError. From its return
// to the end of the transaction no other run can stamp: Fence takes the file's write lock, so
// what the caller writes and what Fence saw are one.
//
// It should be the first statement. After a read in the same deferred transaction it may fail
// with SQLITE_BUSY, as every write then may. The transaction holds up all writers of the file:
// keep it short, and end it when ctx ends. The driver may be any driver of SQLite.
func (s *Store) Fence(ctx context.Context, tx *sql.Tx, f daemon.Fence) error {
	// No unit has an empty daemon: this takes the write lock and writes nothing.
	if _, err := tx.ExecContext(ctx, s.text(`UPDATE ~fence SET generation = generation WHERE daemon = ''`)); err != nil {
		return fmt.Errorf("fence %s: %w", f, s.foreign(err))
	}
	var fileID string
	var held int64
	err := tx.QueryRowContext(ctx, s.text(`SELECT m.file_id, coalesce(f.generation, 0)
		FROM ~meta m LEFT JOIN ~fence f ON f.daemon = ? AND f.idx = ?`), string(f.Unit.Daemon), f.Unit.Index).Scan(&fileID, &held)
	switch {
	case err != nil:
		return fmt.Errorf("fence %s: %w", f, s.foreign(err))
	case !s.hasSeen(fileID):
		return fmt.Errorf("fence %s: %w", f, s.foreign(nil))
	}
	return judgeFence(f, held)
}

// InTx runs fn in a transaction of db, which must be the caller's own handle of the store's file,
// after [Store.Fence] has accepted f, and commits. If fn or the fence fails, nothing is changed.
// It waits for the write lock as long as ctx allows, and fn does not run longer than the run may
// trust its assignment (daemon.Trust): when that ends, the transaction is rolled back.
func (s *Store) InTx(ctx context.Context, db *sql.DB, f daemon.Fence, fn func(*sql.Tx) error) error {
	if trust, ok := daemon.Trust(ctx); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, trust, errTrust)
		defer cancel()
	}
	tx, err := s.beginFenced(ctx, db, f)
	if err != nil {
		return fmt.Errorf("transaction of %s: %w", f, err)
	}
	defer tx.Rollback() // does nothing after Commit
	if err := fn(tx); err != nil {
		return because(ctx, err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("transaction of %s: commit: %w", f, because(ctx, err))
	}
	return nil
}

var errTrust = errors.New("the assignment is not trusted any more")

// because adds why ctx has ended, if it has.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// beginFenced begins a transaction and fences it, again and again while others write.
func (s *Store) beginFenced(ctx context.Context, db *sql.DB, f daemon.Fence) (tx *sql.Tx, err error) {
	err = sqlitefile.RetryBusy(ctx, func() error {
		if tx, err = db.BeginTx(ctx, nil); err != nil {
			return err
		}
		if err = s.Fence(ctx, tx, f); err != nil {
			_ = tx.Rollback() // nothing was changed, and database/sql may have done it already
		}
		return err
	})
	if sqlitefile.IsBusy(err) {
		return nil, s.locked(err)
	}
	if err != nil {
		return nil, because(ctx, err)
	}
	return tx, nil
}

// foreign says what may be wrong with a caller's transaction: it is on another file.
func (s *Store) foreign(err error) error {
	const text = "the transaction is not on the store's file %s (tables %s…): open the same file"
	if err == nil {
		return fmt.Errorf(text, s.cfg.Path, s.cfg.Prefix)
	}
	if strings.Contains(err.Error(), "no such table") {
		return fmt.Errorf(text+": %w", s.cfg.Path, s.cfg.Prefix, err)
	}
	if sqlitefile.IsBusy(err) {
		return fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
	}
	return err
}

// text puts the table prefix into a statement.
func (s *Store) text(statement string) string {
	return strings.ReplaceAll(statement, "~", s.cfg.Prefix)
}

// hasSeen reports whether the store has written to a file with that random id.
func (s *Store) hasSeen(fileID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.seen[fileID]
	return ok
}
