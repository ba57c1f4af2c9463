package postgres

import (
	"context"
	"slices"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// Snapshot implements [storage.Store]: one transaction whose statements all see the same moment. Each process fetches the
// text of an advert only once. Of the units it fetches those that have changed since its newest snapshot. A process that
// knows none fetches all first, in pages. If that takes longer than ctx, the next call goes on.
func (s *Store) Snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	known := s.units.Load()
	for range snapshotTries {
		var err error
		if known == nil {
			known, err = s.loadUnits(ctx, noUnits)
		}
		var snap *daemon.Snapshot
		var read completeness
		if err == nil {
			snap, read, err = s.snapshot(ctx, known)
		}
		if err == nil && read == behind {
			known, err = s.loadUnits(ctx, known)
		}
		switch {
		case err != nil:
			return nil, s.fail("snapshot", err)
		case read == whole:
			return snap, nil
		case read == gone:
			s.units.CompareAndSwap(known, nil)
			known = nil
		}
	}
	return nil, s.fail("snapshot", &unavailable{"units come and go faster than they can be read", errUnitsGone})
}

// snapshotTries is how often a snapshot reads all units anew because some are gone.
const snapshotTries = 3

// snapshot reads the cluster. It says how complete the units are.
func (s *Store) snapshot(ctx context.Context, known *knownUnits) (snap *daemon.Snapshot, read completeness, err error) {
	snap = &daemon.Snapshot{}
	var st state
	var head int64
	var units func() (*knownUnits, completeness)
	var open []command
	err = s.call(ctx, "snapshot", reading, func(m *message) {
		m.query(s.members(&snap.Nodes, &head), "members")
		units = s.readUnits(m, &st, known)
		m.query(st.scanSingle, "single")
		m.query(commands(&open), "waiting")
	})
	if err == nil {
		known, read = units()
		if snap.Units = known.units; read == whole {
			s.units.Store(known)
		}
	}
	if err == nil {
		snap.Now, snap.Cluster, snap.Term, snap.Lease, snap.Head = st.now, st.cluster, st.term, st.lease, st.head
		snap.Commands = sortedCommands(open)
		snap.StoreID, err = s.system(ctx, &st)
	}
	if err == nil {
		if snap.StoreID = st.identity(snap.StoreID); snap.StoreID == st.knownID {
			s.noteHead(snap.StoreID, st.head)
		}
		err = s.attachAdverts(ctx, snap)
	}
	return snap, read, err
}

// attachAdverts fills in the adverts from the cache or, for texts not seen before, from the store.
// A hash always names the same text, so a later read gives the same result.
func (s *Store) attachAdverts(ctx context.Context, snap *daemon.Snapshot) error {
	snap.Adverts = map[string]*daemon.Advert{}
	var missing []string
	for _, m := range snap.Nodes {
		if snap.Adverts[m.Advert] != nil || slices.Contains(missing, m.Advert) {
			continue
		}
		if a := s.advertOf(m.Advert); a != nil {
			snap.Adverts[m.Advert] = a
		} else {
			missing = append(missing, m.Advert)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return s.call(ctx, "adverts", reading, func(m *message) {
		m.query(func(c *composite) error {
			hash := c.text()
			a := &daemon.Advert{}
			if c.json(a); c.err != nil {
				// One unreadable text must not hide all nodes from the leader.
				s.cfg.Logger.Warn("what a node advertises cannot be read", "advert", hash, "error", c.err)
				c.err = nil
				return nil //nolint:nilerr // told
			}
			s.adverts.Store(hash, a)
			snap.Adverts[hash] = a
			return nil
		}, "adverts", array(missing))
	})
}

// Events implements [storage.Store].
func (s *Store) Events(ctx context.Context, after int64, limit int) (*storage.EventPage, error) {
	page := &storage.EventPage{}
	err := s.call(ctx, "events", reading, func(m *message) {
		m.query(events(&page.Events), "events", after, max(limit, 0))
		m.query(func(c *composite) error {
			page.Head, page.Oldest = c.int(), c.int()
			return nil
		}, "bounds")
	})
	if err != nil {
		return nil, s.fail("read events", err)
	}
	if page.Oldest > page.Head {
		page.Oldest = 0 // no event is left
	}
	return page, nil
}
