package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"weak"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// Snapshot implements [storage.Store]: one read transaction, which waits for no writer.
func (s *Store) Snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	snap := &daemon.Snapshot{}
	err := s.readCall(ctx, "snapshot", func(v *view) {
		*snap = daemon.Snapshot{
			Now: v.now, StoreID: s.storeID(v.c, v.meta), Cluster: v.meta.cluster, Term: v.term, Lease: v.lease,
			Nodes:    v.members(),
			Units:    v.units(`SELECT ` + unitColumns + ` FROM ~unit ORDER BY daemon, idx`),
			Adverts:  s.parseAdverts(v),
			Head:     v.meta.head,
			Commands: v.openCommands(),
		}
	})
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return snap, nil
}

// parseAdverts reads what nodes advertise. A text is not parsed again soon: what it says is kept until a collection of garbage finds
// it in no snapshot. It may take megabytes, and only a leader reads snapshots all the time.
func (s *Store) parseAdverts(v *view) map[string]*daemon.Advert {
	s.mu.Lock()
	known := s.adverts
	s.mu.Unlock()
	out, kept := map[string]*daemon.Advert{}, map[string]weak.Pointer[daemon.Advert]{}
	v.each(`SELECT hash, text FROM ~advert`, nil, func(scan func(...any) bool) {
		var hash, text string
		if !scan(&hash, &text) {
			return
		}
		a := known[hash].Value()
		if a == nil {
			a = &daemon.Advert{}
			if err := json.Unmarshal([]byte(text), a); err != nil {
				v.err = fmt.Errorf("advert %s: %w", hash, err)
				return
			}
		}
		out[hash], kept[hash] = a, weak.Make(a)
	})
	s.mu.Lock()
	s.adverts = kept
	s.mu.Unlock()
	return out
}

// Events implements [storage.Store].
func (s *Store) Events(ctx context.Context, after int64, limit int) (*storage.EventPage, error) {
	page := &storage.EventPage{}
	err := s.readCall(ctx, "events", func(v *view) {
		*page = storage.EventPage{
			Events: v.history(`WHERE seq > ? ORDER BY seq LIMIT ?`, after, max(limit, 0)),
			Head:   v.meta.head,
			Oldest: v.oldest(),
		}
	})
	if err != nil {
		return nil, fmt.Errorf("events after %d: %w", after, err)
	}
	return page, nil
}

// Submit implements [storage.Store]: it stores a command, or returns the one that has its ID.
func (s *Store) Submit(ctx context.Context, command storage.Command) (*storage.Command, error) {
	var out *storage.Command
	err := s.call(ctx, "submit", func(st *step) error {
		out = st.submit(command)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("submit command %s: %w", command.ID, err)
	}
	return out, nil
}

func (st *step) submit(c storage.Command) *storage.Command {
	if old := st.command(c.ID); old != nil {
		return old
	}
	c = rules.NewCommand(st, c, st.term, st.now)
	st.exec(`INSERT INTO ~command (`+commandColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		c.ID, c.Kind, c.Actor, c.Reason, c.Term, c.Cooldown, orNull(c.Args), nanos(c.CreatedAt), nanos(c.DoneAt), c.Result)
	st.wakeLeader()
	return &c
}
