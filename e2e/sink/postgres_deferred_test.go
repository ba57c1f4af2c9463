package sink_test

import (
	"errors"
	"testing"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/postgres"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// TestPostgresDeferred checks that a message which breaks a deferred constraint, so that only the commit fails, is refused
// alone with those behind it in its key, and that the others are written.
func TestPostgresDeferred(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, `create table target (id uuid primary key, slot int, unique (slot) deferrable initially deferred)`)
	s := d.open(t, postgres.Config{Create: true, Statement: `insert into target (id, slot) values (@id, (convert_from(@payload, 'UTF8')::jsonb->>'n')::int)`})
	rows := sinktest.Rows("orders", 12, 6)
	rows[3].Payload = []byte(`{"n":0}`) // as the first
	rows[9].Key = rows[3].Key
	errs := deliver(t, s, "0-63", 5, rows)
	for i, err := range errs {
		switch {
		case i == 3 && !errors.Is(err, outbox.ErrPermanent), rows[i].Key == rows[3].Key && i > 3 && !errors.Is(err, outbox.ErrSkipped), rows[i].Key != rows[3].Key && err != nil:
			t.Errorf("row %d, key %s: %v", i, rows[i].Key, err)
		}
	}
	var written int
	must(t, d.pool.QueryRow(t.Context(), `select count(*) from target`).Scan(&written))
	if written != 10 {
		t.Errorf("%d messages are written, want 10", written)
	}
	all(t, deliver(t, s, "0-63", 5, rows[:1]), nil) // it is noted as delivered
	must(t, d.pool.QueryRow(t.Context(), `select count(*) from target`).Scan(&written))
	if written != 10 {
		t.Errorf("after a repetition %d messages are written, want 10", written)
	}
}

// TestPostgresDeferredTogether checks that messages which keep a deferred constraint only together are written together,
// also beside one that the database refuses.
func TestPostgresDeferredTogether(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, `create table target (n int primary key, before int references target deferrable initially deferred)`)
	s := d.open(t, postgres.Config{Create: true, Statement: `insert into target values (
		(convert_from(@payload, 'UTF8')::jsonb->>'n')::int, (convert_from(@payload, 'UTF8')::jsonb->>'before')::int)`})
	rows := sinktest.Rows("orders", 3, 3)
	rows[0].Payload, rows[1].Payload, rows[2].Payload = []byte(`{"n":1,"before":2}`), []byte(`{"n":2,"before":1}`), []byte(`{"n":"none"}`)
	errs := deliver(t, s, "0-63", 5, rows)
	if errs[0] != nil || errs[1] != nil || !errors.Is(errs[2], outbox.ErrPermanent) {
		t.Errorf("%v", errs)
	}
}
