package postgres

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// Snapshot implements [storage.Store]: one transaction whose statements see one moment. What
// nodes advertise is fetched once per text and process.
func (s *Store) Snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	snap := &daemon.Snapshot{}
	var st state
	var head int64
	err := s.call(ctx, "snapshot", reading, func(q *query) {
		q.add("members").Query(members(&snap.Nodes, &head))
		q.add("units").Query(records(&snap.Units))
		q.add("state").Query(st.read)
	})
	if err == nil {
		snap.Now, snap.StoreID, snap.Term, snap.Lease, snap.Head = st.now, st.id, st.term, st.lease, st.head
		err = s.attachAdverts(ctx, snap)
	}
	if err != nil {
		return nil, s.fail("snapshot", err)
	}
	return snap, nil
}

// attachAdverts fills in the adverts, from the cache or, for texts never seen, from the store: a
// hash names one text for ever, so a later read is as good.
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
	return s.call(ctx, "adverts", reading, func(q *query) {
		q.add("adverts", array(missing)).Query(func(rows pgx.Rows) error {
			var hash, body string
			_, err := pgx.ForEachRow(rows, []any{&hash, &body}, func() error {
				a, err := parseAdvert(hash, body)
				if err != nil {
					// One unreadable text must not blind the leader to all nodes.
					s.cfg.Logger.Warn("a node's advert cannot be read", "advert", hash, "error", err)
					return nil
				}
				s.adverts.Store(hash, a)
				snap.Adverts[hash] = a
				return nil
			})
			return err
		})
	})
}

// Events implements [storage.Store].
func (s *Store) Events(ctx context.Context, after int64, limit int) (*storage.EventPage, error) {
	page := &storage.EventPage{}
	err := s.call(ctx, "events", reading, func(q *query) {
		var found bool
		q.add("events", after, max(limit, 0)).Query(events(&page.Events))
		q.add("bounds").Query(one(&found, &page.Head, &page.Oldest))
	})
	if err != nil {
		return nil, s.fail("read events", err)
	}
	if page.Oldest > page.Head {
		page.Oldest = 0 // none is kept
	}
	return page, nil
}
