package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// Rows that went back in time on the same server make it another store for every process that saw
// newer ones. Its own writes notice that at once, and all processes from their next heartbeats on.
func TestRowsThatWentBackInTime(t *testing.T) {
	t.Parallel()
	for how, goBack := range map[string]string{
		"a crash, and others wrote as many events": `
			delete from %[1]s.event where seq > %[2]d;
			delete from %[1]s.unit where index = 1;
			update %[1]s.counter set head = %[2]d, rolled = least(rolled, %[2]d);
			update %[1]s.node n set seq = o.seq from %[1]s.old_node o where o.incarnation = n.incarnation`,
		"an earlier copy was restored": `
			delete from %[1]s.event where seq > %[2]d;
			delete from %[1]s.unit where index = 1;
			update %[1]s.counter set head = %[2]d, rolled = least(rolled, %[2]d)`,
		"the tables were made anew": `
			delete from %[1]s.event; delete from %[1]s.unit;
			update %[1]s.counter set head = 0 * %[2]d, oldest = 1, rolled = 0, store_id = '', other_since = null`,
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			cfg := s.schema(t, func(c *postgres.Config) { c.Logger = slog.New(slog.DiscardHandler) })
			a, b := join(t, open(t, cfg), "a"), join(t, open(t, cfg), "b")
			term := a.lead()
			run := a.assign(term, unit(0), b)
			before := b.beat()
			if got := a.beat(); got.StoreID != before.StoreID || !got.StoreSince.IsZero() {
				t.Fatalf("the store is %q since %v, and %q for another process", got.StoreID, got.StoreSince, before.StoreID)
			}
			s.exec(t, "create table "+cfg.Schema+".old_node as select * from "+cfg.Schema+".node")
			fresh := open(t, cfg)
			a.assign(term, unit(1), b)
			seen := a.beat().Head // sees the events that will be lost
			s.exec(t, fmt.Sprintf(goBack, cfg.Schema, before.Head))
			if how == "a crash, and others wrote as many events" {
				for head := before.Head; head < seen; head = mustSnapshot(t, fresh).Head {
					join(t, fresh, "new")
				}
			}

			ctx := context.Background()
			commit := storage.Commit{Term: term.Ref(), StoreID: before.StoreID, Changes: []storage.Change{{Unit: unit(2)}}}
			if _, err := a.store.Commit(ctx, commit); !errors.Is(err, storage.ErrStoreChanged) {
				t.Errorf("a commit of who saw more: %v, want %v", err, storage.ErrStoreChanged)
			}
			now := a.beat()
			if now.StoreID == before.StoreID || now.StoreSince.IsZero() {
				t.Errorf("the store is %q since %v, was %q", now.StoreID, now.StoreSince, before.StoreID)
			}
			b.seq++
			_, err := b.store.Report(ctx, storage.Report{Node: b.id, Seq: b.seq, StoreID: before.StoreID, Units: []storage.UnitReport{
				{Unit: unit(0), Generation: run.Generation, Step: daemon.Release},
			}})
			if !errors.Is(err, storage.ErrStoreChanged) {
				t.Errorf("a report of who read the store before: %v, want %v", err, storage.ErrStoreChanged)
			}
			for _, p := range []*actor{b, a} {
				if r := p.beat(); r.StoreID != now.StoreID || !r.StoreSince.Equal(now.StoreSince) {
					t.Errorf("%s: the store is %q since %v, want %q since %v", p.id.Name, r.StoreID, r.StoreSince, now.StoreID, now.StoreSince)
				}
			}
			if got := mustSnapshot(t, b.store).StoreID; got != now.StoreID {
				t.Errorf("the snapshot is of %q, want %q", got, now.StoreID)
			}
			commit.StoreID = now.StoreID
			if _, err := a.store.Commit(ctx, commit); err != nil {
				t.Errorf("a commit to the store as it is: %v", err)
			}
		})
	}
}
