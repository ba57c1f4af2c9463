package postgres

import (
	"context"
	"testing"

	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/outbox"
)

// TestLastDrawnIsNoMore reads the last id while a publisher draws ids as fast as it can. No reading may be above one
// that comes later: as a floor, it would hide the messages between.
func TestLastDrawnIsNoMore(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t, Config{})
	drawing := make(chan error, 1)
	go func() {
		_, err := w.owner.Exec(ctx, w.names.q(`select count(nextval('~outbox_id')) from generate_series(1, 3000000)`))
		drawing <- err
	}()
	readings := w.names.q(`do $$ declare was bigint;
		begin
			for i in 1..20000 loop
				was := ` + lastDrawn + `;
				if was > pg_sequence_last_value('~outbox_id'::regclass) then
					raise exception 'a reading was too high';
				end if;
			end loop;
		end $$`)
	for {
		w.exec(readings)
		select {
		case err := <-drawing:
			ok(t, err)
			return
		default:
		}
	}
}

// TestFullIsByTheSameReading checks that the functions which decide that a partition is full read the last id as relays do.
func TestFullIsByTheSameReading(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	for _, function := range []string{"pass", "close"} {
		if !value[bool](w, `select prosrc like '%pg_sequence_last_value(%' from pg_proc where oid = to_regproc($1)`, w.names.table("outbox_"+function)) {
			t.Errorf("outbox_%s reads something else", function)
		}
	}
}

// TestFloorOfSeveralRows stores a position in two cursor rows, and holds the first row while a transaction begins and
// draws an id. That transaction began after the one that stores, so no floor of the latter may be above its id.
func TestFloorOfSeveralRows(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	_, w := bench(t, Config{}, nil) // a server of its own: no other transaction may end meanwhile
	half := func(index, instances int, epoch int64) *cursor {
		c, err := w.Claim(ctx, outbox.ClaimRequest{Subscription: "s", Index: index, Instances: instances, Epoch: epoch})
		ok(t, err)
		t.Cleanup(c.Close)
		return c.(*cursor)
	}
	w.publish(text("a", "1"))
	drain(t, half(0, 2, 1))
	w.publish(text("a", "2"))
	c := half(0, 1, 2)
	if len(c.rows) != 2 {
		t.Fatalf("%d cursor rows", len(c.rows))
	}
	var mark outbox.Mark
	for more := true; more; { // the last page is of both rows at the same position
		page, err := c.Next(ctx, outbox.Limit{})
		ok(t, err)
		if more = page.More; page.Mark != nil {
			mark = page.Mark
		}
	}
	holding := beginAs(t, w.owner)
	_, err := holding.Exec(ctx, w.names.q("select from ~outbox_cursor where lo = 0 for update"))
	ok(t, err)
	stored := make(chan error, 1)
	go func() { stored <- c.Advance(ctx, mark, nil) }()
	eventually(t, "the first row is waited for", func() bool {
		return value[bool](w, "select exists (select from pg_stat_activity where wait_event_type = 'Lock')")
	})
	late := w.begin()
	ok(t, w.pub.Publish(ctx, late, text("a", "3")))
	ok(t, holding.Rollback(ctx))
	ok(t, <-stored)
	got := drain(t, c)
	ok(t, late.Commit(ctx))
	if got = append(got, drain(t, c)...); len(got) == 0 || got[len(got)-1] != "3" {
		t.Errorf("got %v, want 3 at the end", got)
	}
}

// TestLastDrawnNeedsItsRight checks that a relay whose role may not read the sequence is told so.
func TestLastDrawnNeedsItsRight(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w := s.world(t, Config{})
	c := w.claim("s", 1)
	w.exec("revoke select on ~outbox_id from " + s.role)
	if _, err := c.Next(t.Context(), outbox.Limit{}); pgerror.Code(err) != denied {
		t.Errorf("got %v", err)
	}
}
