package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/storage"
)

// Fence checks, inside the caller's own transaction on the store's file, that the run f has stamped
// its unit last. Otherwise it returns a daemon.StaleError. Fence takes the file's write lock. From
// its return to the end of the transaction no other run can therefore stamp, so the caller's writes
// happen under the fence that was checked.
//
// It should be the first statement. After a read in the same deferred transaction it may fail with
// SQLITE_BUSY, as every write then may. The transaction blocks all writers of the file: keep it
// short, and end it when ctx ends.
//
// In the process of the store, tx must be of the store's driver (modernc.org/sqlite), because two drivers of one process
// do not see each other's locks. Fence refuses a transaction that it finds to be of another one. Another process may use any driver.
func (s *Store) Fence(ctx context.Context, tx *sql.Tx, f daemon.Fence) error {
	if _, err := tx.ExecContext(ctx, s.text(takeLock)); err != nil {
		return fmt.Errorf("fence %s: %w", f, s.explainOtherFile(err))
	}
	var fileID string
	var held int64
	err := tx.QueryRowContext(ctx, s.text(`SELECT m.file_id, coalesce(f.generation, 0)
		FROM ~meta m LEFT JOIN ~fence f ON f.daemon = ? AND f.idx = ?`), columnsOf(f.Unit)...).Scan(&fileID, &held)
	switch {
	case err != nil:
		return fmt.Errorf("fence %s: %w", f, s.explainOtherFile(err))
	case !s.hasSeen(fileID):
		return fmt.Errorf("fence %s: %w", f, s.explainOtherFile(nil))
	}
	if err := s.checkLockedOut(ctx, tx); err != nil {
		return fmt.Errorf("fence %s: %w", f, err)
	}
	return checkFenceHeld(f, held)
}

// takeLock takes the write lock and changes nothing, because no unit has an empty daemon.
const takeLock = `UPDATE ~fence SET generation = generation WHERE daemon = ''`

var errNotLockedOut = errors.New("the transaction's lock does not keep the store from writing: it is of another SQLite driver than " +
	"modernc.org/sqlite, or on a copy of the file: open the store's file with that driver in this process")

// checkLockedOut refuses a transaction whose write lock does not keep the store's own connection from writing. While that
// connection is in use or not open, it checks nothing.
func (s *Store) checkLockedOut(ctx context.Context, tx *sql.Tx) error {
	var c *session
	select {
	case c = <-s.writer:
	default:
		return nil
	}
	defer func() { s.writer <- c }()
	if c == nil || c.Broken || s.inPlace(c) != nil {
		return nil
	}
	lockedOut, err := c.LockedOut(ctx)
	if c.Broken = c.Broken || err != nil; lockedOut || err != nil {
		return nil //nolint:nilerr // what is wrong with the store's own connection is not the transaction's fault
	}
	if _, err := tx.ExecContext(ctx, s.text(takeLock)); err != nil {
		return err // the transaction has ended, and its lock with it
	}
	return errNotLockedOut
}

// InTx runs fn in a transaction of db, after [Store.Fence] has accepted f, and commits. db must be
// the caller's own handle of the store's file. If fn or the fence fails, nothing is changed. InTx
// waits for the write lock as long as ctx allows. When the validity of the run's assignment ends
// (daemon.Validity), the transaction is rolled back, so the effects of fn cannot outlast it.
func (s *Store) InTx(ctx context.Context, db *sql.DB, f daemon.Fence, fn func(*sql.Tx) error) error {
	if trust, ok := daemon.Validity(ctx); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, trust, errTrust)
		defer cancel()
	}
	tx, err := s.beginFenced(ctx, db, f)
	if err != nil {
		return fmt.Errorf("transaction of %s: %w", f, err)
	}
	defer tx.Rollback() // no effect after Commit
	if err := fn(tx); err != nil {
		return withCause(ctx, err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("transaction of %s: commit: %w", f, withCause(ctx, err))
	}
	return nil
}

var errTrust = errors.New("the assignment is not trusted any more")

// withCause adds the reason why ctx has ended, if it has.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// beginFenced begins a transaction and checks the fence. It tries again while others write.
func (s *Store) beginFenced(ctx context.Context, db *sql.DB, f daemon.Fence) (tx *sql.Tx, err error) {
	err = sqlitefile.RetryBusy(ctx, func() error {
		if tx, err = db.BeginTx(ctx, nil); err != nil {
			return err
		}
		if err = s.Fence(ctx, tx, f); err != nil {
			_ = tx.Rollback() // nothing was changed, and database/sql may have rolled back already
		}
		return err
	})
	if sqlitefile.IsBusy(err) {
		return nil, s.lockError(err)
	}
	if err != nil {
		return nil, withCause(ctx, err)
	}
	return tx, nil
}

// explainOtherFile explains an error of a caller's transaction that may be on another file.
func (s *Store) explainOtherFile(err error) error {
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

// hasSeen reports whether this store has written to a file with that random ID.
func (s *Store) hasSeen(fileID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.seen[fileID]
	return ok
}
