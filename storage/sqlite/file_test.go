package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// copyOf makes a backup of the store's file as an operator would.
func copyOf(t testing.TB, s *Store) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "backup.db")
	_, err := userDB(t, s.Path()).Exec("VACUUM INTO ?", to)
	ok(t, err)
	return to
}

// replace puts another file in the store's place, as mv does, with the files beside it.
func replace(t testing.TB, s *Store, by string) {
	t.Helper()
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(s.Path() + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	ok(t, os.Rename(by, s.Path()))
}

// restore writes a backup into the live file, as sqlite3's .restore does: the inode stays.
func restore(t testing.TB, s *Store, from string) {
	t.Helper()
	conn, err := userDB(t, s.Path()).Conn(context.Background())
	ok(t, err)
	defer conn.Close()
	ok(t, conn.Raw(func(c any) error {
		b, err := c.(interface {
			NewRestore(string) (*modernc.Backup, error)
		}).NewRestore("file:" + from)
		if err != nil {
			return err
		}
		if _, err := b.Step(-1); err != nil {
			return err
		}
		return b.Finish()
	}))
}

// A copy is another store wherever it is opened, and the original stays the same store.
func TestCopyIsAnotherStore(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	runs(t, s, someone("a"))
	id := snapshot(t, s).StoreID
	other := mustOpen(t, Config{Path: copyOf(t, s)})
	if got := snapshot(t, other).StoreID; got == id {
		t.Errorf("a copy has the identity %s of the original", got)
	}
	again := mustOpen(t, Config{Path: s.Path()})
	if got := snapshot(t, again).StoreID; got != id {
		t.Errorf("the identity changed from %s to %s", id, got)
	}
}

// If a backup replaces the file, the next call of a running process notices that, whichever call it
// is.
func TestReplacedFileIsAnotherStore(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(*Store) (string, error){
		"read": func(s *Store) (string, error) {
			snap, err := s.Snapshot(context.Background())
			if err != nil {
				return "", err
			}
			return snap.StoreID, nil
		},
		"write": func(s *Store) (string, error) {
			r, err := s.Heartbeat(context.Background(), storage.Heartbeat{Node: someone("b"), Seq: 1, Advert: plainAdvert})
			if err != nil {
				return "", err
			}
			return r.StoreID, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
			backup := copyOf(t, s)
			runs(t, s, someone("a"))
			before := snapshot(t, s)
			replace(t, s, backup)
			id, err := call(s)
			ok(t, err)
			if id == before.StoreID {
				t.Error("another file has the same identity")
			}
			if snap := snapshot(t, s); snap.StoreID != id || snap.Term.Held() {
				t.Errorf("store %s with term %+v, want the content of the backup under %s", snap.StoreID, snap.Term, id)
			}
			beat(t, s, storage.Heartbeat{Node: someone("c"), Seq: 1, Advert: plainAdvert})
		})
	}
}

// A backup that is written into the live file keeps name and inode. A process that saw later events
// notices it, and the file gets another identity for all processes.
func TestRestoredFileIsAnotherStore(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(testing.TB, *Store){
		"read": func(t testing.TB, s *Store) { snapshot(t, s) },
		"write": func(t testing.TB, s *Store) {
			beat(t, s, storage.Heartbeat{Node: someone("b"), Seq: 1, Advert: plainAdvert})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
			other := mustOpen(t, Config{Path: s.Path()})
			backup := copyOf(t, s)
			runs(t, s, someone("a"))
			before := snapshot(t, s)
			restore(t, s, backup)
			first(t, s)
			if now := snapshot(t, s); now.StoreID == before.StoreID || now.Term.Held() {
				t.Errorf("the restored store is %s with term %+v, the one before was %s", now.StoreID, now.Term, before.StoreID)
			}
			if a, b := snapshot(t, s).StoreID, snapshot(t, other).StoreID; a != b {
				t.Errorf("two processes see %s and %s", a, b)
			}
		})
	}
}

// A restored copy is noticed also if others have written as many events since as were lost with it, or more. A process has
// seen an event also if it only read it.
func TestOvertakenCopyIsAnotherStore(t *testing.T) {
	t.Parallel()
	for more := range int64(2) {
		for name, first := range map[string]func(testing.TB, *Store){
			"read": func(t testing.TB, s *Store) { snapshot(t, s) },
			"write": func(t testing.TB, s *Store) {
				beat(t, s, storage.Heartbeat{Node: someone("b"), Seq: 1, Advert: plainAdvert})
			},
		} {
			t.Run(fmt.Sprintf("%s after %d more", name, more), func(t *testing.T) {
				t.Parallel()
				m := newMachine()
				s := m.open(t, filepath.Join(t.TempDir(), "store.db"))
				other := m.open(t, s.Path())
				backup := copyOf(t, s)
				runs(t, other, someone("a"))
				before := snapshot(t, s)
				m.pass(time.Second)
				restore(t, s, backup)
				fresh := m.open(t, s.Path())
				for head := int64(0); head < before.Head+more; head = snapshot(t, fresh).Head {
					beat(t, fresh, storage.Heartbeat{Node: someone("new"), Seq: 1, Advert: plainAdvert})
				}
				first(t, s)
				now := snapshot(t, s)
				if now.StoreID == before.StoreID || now.Term.Held() {
					t.Errorf("the restored store is %s with term %+v, the one before was %s", now.StoreID, now.Term, before.StoreID)
				}
				for what, s := range map[string]*Store{"another process": other, "the one that wrote": fresh} {
					if id := snapshot(t, s).StoreID; id != now.StoreID {
						t.Errorf("%s sees %s, want %s", what, id, now.StoreID)
					}
				}
			})
		}
	}
}

// A copy that is restored a second time is noticed also if all processes that saw more of it were restarted in between. One that
// has seen no more of it than the copy has notices it, too.
func TestCopyRestoredTwice(t *testing.T) {
	t.Parallel()
	joins := func(t testing.TB, s *Store) *storage.Reply {
		return beat(t, s, storage.Heartbeat{Node: someone("x"), Seq: 1, Advert: plainAdvert})
	}
	for name, first := range map[string]func(testing.TB, *Store){
		"read":  func(t testing.TB, s *Store) { snapshot(t, s) },
		"write": func(t testing.TB, s *Store) { joins(t, s) },
	} {
		for _, started := range []string{"restarted", "running"} {
			t.Run(name+" of a "+started+" process", func(t *testing.T) {
				t.Parallel()
				m := newMachine()
				path := filepath.Join(t.TempDir(), "store.db")
				s := m.open(t, path)
				idle := m.open(t, path)
				backup := copyOf(t, s)
				joins(t, s) // is lost
				m.pass(time.Minute)
				restore(t, s, backup)
				joins(t, s)
				ok(t, s.Close())
				m.pass(time.Minute)
				one, two := m.open(t, path), m.open(t, path)
				if started == "running" {
					one = idle
				}
				before := joins(t, one)
				if r := joins(t, two); r.StoreID != before.StoreID || !r.StoreSince.Equal(before.StoreSince) {
					t.Errorf("after a restart it is %s since %v, want %s since %v", r.StoreID, r.StoreSince, before.StoreID, before.StoreSince)
				}
				m.pass(time.Minute)
				restore(t, one, backup)
				first(t, one)
				found := joins(t, one)
				if found.StoreID == before.StoreID || !found.StoreSince.Equal(found.Now) {
					t.Errorf("at %v it is %s since %v, before it was %s", found.Now, found.StoreID, found.StoreSince, before.StoreID)
				}
				for i, s := range []*Store{two, m.open(t, path), one, two} {
					m.pass(time.Minute)
					if r := joins(t, s); r.StoreID != found.StoreID || !r.StoreSince.Equal(found.StoreSince) {
						t.Errorf("call %d is told of %s since %v, want %s since %v", i, r.StoreID, r.StoreSince, found.StoreID, found.StoreSince)
					}
				}
			})
		}
	}
}

// A call that cannot check whether an event was lost fails, and the next one checks it.
func TestLossThatCannotBeChecked(t *testing.T) {
	t.Parallel()
	m := newMachine()
	s := m.open(t, filepath.Join(t.TempDir(), "store.db"))
	backup := copyOf(t, s)
	runs(t, s, someone("a"))
	before := snapshot(t, s)
	m.pass(time.Second)
	restore(t, s, backup)
	fresh := m.open(t, s.Path())
	for snapshot(t, fresh).Head <= before.Head {
		beat(t, fresh, storage.Heartbeat{Node: someone("new"), Seq: 1, Advert: plainAdvert})
	}
	c := <-s.writer
	check, err := c.Stmt(t.Context(), timeOfEvent)
	ok(t, err)
	ok(t, check.Close()) //nolint:sqlclosecheck // from now on it fails
	s.writer <- c
	joins := storage.Heartbeat{Node: someone("b"), Seq: 1, Advert: plainAdvert}
	if _, err := s.Heartbeat(t.Context(), joins); err == nil {
		t.Error("a call succeeded that could not check whether an event was lost")
	}
	c.Broken = true // a new connection has the statement again
	if r := beat(t, s, joins); r.StoreID == before.StoreID {
		t.Errorf("the restored store is %s, as before", r.StoreID)
	}
}

// An event that the process has seen, and that was swept since, is not taken for lost.
func TestSweptEventIsNotLost(t *testing.T) {
	t.Parallel()
	m := newMachine()
	s := m.open(t, filepath.Join(t.TempDir(), "store.db"))
	other := m.open(t, s.Path())
	runs(t, other, someone("a"))
	before := snapshot(t, s)
	m.pass(time.Hour)
	beat(t, other, storage.Heartbeat{Node: someone("b"), Seq: 1, Advert: plainAdvert})
	for _, upTo := range []int64{before.Head, before.Head + 1} {
		_, err := userDB(t, s.Path()).Exec("DELETE FROM emitd_event WHERE seq <= ?", upTo)
		ok(t, err)
		if now := snapshot(t, s); now.StoreID != before.StoreID {
			t.Errorf("the store is %s after events up to %d were swept, want %s", now.StoreID, upTo, before.StoreID)
		}
	}
}

// If a file became another store, every heartbeat's reply says since when. That includes heartbeats
// of processes that start later and have seen nothing of the earlier store. After a reboot it says
// nothing, because no process of the earlier store is left.
func TestSinceWhenItIsAnotherStore(t *testing.T) {
	t.Parallel()
	m := newMachine()
	path := filepath.Join(t.TempDir(), "store.db")
	joins := func(s *Store) *storage.Reply {
		return beat(t, s, storage.Heartbeat{Node: someone("x"), Seq: 1, Advert: plainAdvert})
	}
	s := m.open(t, path)
	backup := copyOf(t, s)
	if r := joins(s); !r.StoreSince.IsZero() { // is lost
		t.Errorf("a new file is another store since %v", r.StoreSince)
	}
	m.pass(time.Minute)
	restore(t, s, backup)
	restored := joins(s)
	if !restored.StoreSince.Equal(restored.Now) {
		t.Errorf("a copy was restored at %v, another store since %v", restored.Now, restored.StoreSince)
	}
	m.pass(time.Minute)
	if r := joins(m.open(t, path)); !r.StoreSince.Equal(restored.StoreSince) || r.StoreID != restored.StoreID {
		t.Errorf("a process that began later is told of %s since %v, want %s since %v", r.StoreID, r.StoreSince, restored.StoreID, restored.StoreSince)
	}
	replace(t, s, copyOf(t, s))
	m.pass(time.Minute)
	if r := joins(m.open(t, path)); !r.StoreSince.Equal(r.Now) || r.StoreID == restored.StoreID {
		t.Errorf("a copy was put in its place, found at %v: %s since %v", r.Now, r.StoreID, r.StoreSince)
	}
	if r := joins(m.boots("boot-2").open(t, path)); !r.StoreSince.IsZero() {
		t.Errorf("after a reboot it is another store since %v", r.StoreSince)
	}
}

// A report or commit that was decided from a file is refused by an earlier copy restored into it,
// even if that call is the first to find the copy.
func TestWritesForTheFileBefore(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	a := someone("a")
	read := beat(t, s, storage.Heartbeat{Node: a, Seq: 1, Advert: plainAdvert, TermRequest: storage.TermRequest{Campaign: true, Lease: time.Hour}})
	backup := copyOf(t, s)
	calls := map[string]func(store string) error{
		"report": func(store string) error {
			_, err := s.Report(t.Context(), storage.Report{Node: a, Seq: 2, StoreID: store})
			return err
		},
		"commit": func(store string) error {
			_, err := s.Commit(t.Context(), storage.Commit{Term: read.Term.Ref(), StoreID: store})
			return err
		},
	}
	for what, call := range calls {
		beat(t, s, storage.Heartbeat{Node: someone("b"), Seq: 1, Advert: plainAdvert}) // is lost
		read.StoreID = snapshot(t, s).StoreID
		restore(t, s, backup)
		if err := call(read.StoreID); !errors.Is(err, storage.ErrStoreChanged) {
			t.Errorf("%s: error %v, want %v", what, err, storage.ErrStoreChanged)
		}
		if err := call(snapshot(t, s).StoreID); err != nil {
			t.Errorf("%s to the file as it is: %v", what, err)
		}
	}
}

// Readers beside a writer do not mistake a commit that happens meanwhile for a loss.
func TestReadersDoNotMistakeCommitsForALoss(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	id := snapshot(t, s).StoreID
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 300 {
			if _, err := s.Submit(context.Background(), storage.Command{ID: someone("").Name + string(someone("").ID), Kind: daemon.CommandResign}); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for {
		select {
		case <-done:
			return
		default:
		}
		if got := snapshot(t, s).StoreID; got != id {
			t.Fatalf("the identity changed from %s to %s", id, got)
		}
	}
}

// A file that was removed is not created again under running processes. When it is put back, they
// go on.
func TestRemovedFile(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	runs(t, s, someone("a"))
	before := snapshot(t, s)
	away := filepath.Join(t.TempDir(), "away.db")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		ok(t, os.Rename(s.Path()+suffix, away+suffix))
	}
	for range 2 {
		_, err := s.Heartbeat(ctx, storage.Heartbeat{Node: someone("b"), Seq: 1, Advert: plainAdvert})
		refused(t, err, storage.ErrUnavailable)
		refused(t, err, os.ErrNotExist)
		_, err = s.Snapshot(ctx)
		refused(t, err, storage.ErrUnavailable)
	}
	if _, err := os.Stat(s.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the file is there again: %v", err)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		ok(t, os.Rename(away+suffix, s.Path()+suffix))
	}
	if now := snapshot(t, s); now.StoreID != before.StoreID || now.Term != before.Term {
		t.Errorf("store %s with term %+v came back, want %s with %+v", now.StoreID, now.Term, before.StoreID, before.Term)
	}
}

// Symbolic links to one file make one store.
func TestSymbolicLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := mustOpen(t, Config{Path: filepath.Join(dir, "store.db")})
	ok(t, os.Symlink(s.Path(), filepath.Join(dir, "link.db")))
	ok(t, os.Symlink(dir, filepath.Join(dir, "linked")))
	for _, path := range []string{"link.db", "linked/store.db", "linked/link.db"} {
		other := mustOpen(t, Config{Path: filepath.Join(dir, path)})
		if other.Path() != s.Path() || snapshot(t, other).StoreID != snapshot(t, s).StoreID {
			t.Errorf("%s is %s, store %s", path, other.Path(), snapshot(t, other).StoreID)
		}
	}
}

// Paths may have any characters that a file name may have.
func TestHostilePath(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a?b#c%20d 'e'&mode=memory.db")
	s := mustOpen(t, Config{Path: path})
	runs(t, s, someone("a"))
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
}

// Two prefixes in one file are two clusters.
func TestPrefixesShareAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	one, two := mustOpen(t, Config{Path: path}), mustOpen(t, Config{Path: path, Prefix: "other_"})
	runs(t, one, someone("a"))
	if snap := snapshot(t, two); snap.Head != 0 || snap.Term.Held() || snap.StoreID == snapshot(t, one).StoreID {
		t.Errorf("the other cluster is %+v", snap)
	}
	runs(t, two, someone("b"))
}

func TestClose(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	ok(t, s.Close())
	ok(t, s.Close())
	_, err := s.Snapshot(context.Background())
	refused(t, err, errClosed)
	_, err = s.Acquire(context.Background(), "lock", "me", time.Minute, storage.Lock{})
	refused(t, err, errClosed)
	for _, suffix := range []string{"-wal", "-shm"} {
		if _, err := os.Stat(s.Path() + suffix); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left behind (%v)", suffix, err)
		}
	}
}

// A call whose context has ended changes nothing and returns the context's error.
func TestEndedContext(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Heartbeat(ctx, storage.Heartbeat{Node: someone("a"), Seq: 1, Advert: plainAdvert})
	refused(t, err, context.Canceled)
	if strings.Contains(err.Error(), "locked") {
		t.Errorf("a cancelled call blames a lock: %v", err)
	}
	_, err = s.Snapshot(ctx)
	refused(t, err, context.Canceled)
	if snap := snapshot(t, s); snap.Head != 0 {
		t.Errorf("a call with an ended context wrote %d events", snap.Head)
	}
}
