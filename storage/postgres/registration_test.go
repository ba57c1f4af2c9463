package postgres_test

import (
	"context"
	"strings"
	"testing"
)

// A text that is registered again is not written again, unless a sweep could delete it soon.
func TestAdvertsAreWrittenOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	store := open(t, cfg)
	join(t, store, "a")
	version := "select string_agg(xmin::text || ctid::text, ' ') from " + cfg.Schema + ".advert"
	before := value[string](t, s, version)
	join(t, store, "b")
	if after := value[string](t, s, version); after != before {
		t.Errorf("the text %s was written again: %s", before, after)
	}
	s.exec(t, "update "+cfg.Schema+".advert set used_at = clock_timestamp() - interval '2 hours'")
	join(t, store, "c")
	if !value[bool](t, s, "select every(used_at > clock_timestamp() - interval '1 minute') from "+cfg.Schema+".advert") {
		t.Error("the text was not marked as used")
	}
}

// A node that catches up reads the events about members by their own index.
func TestCatchingUpUsesItsIndex(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	open(t, cfg)
	s.exec(t, `insert into `+cfg.Schema+`.event (seq, at, kind, node, node_id, incarnation, daemon, term, term_ordinal, generation, reason)
		select g, now(), case when g % 1000 = 0 then 'node.late' else 'fence.waiting' end, '', '', '', '', 0, 0, 0, '' from generate_series(1, 50000) g`)
	rows, err := s.pool.Query(context.Background(), "explain select e from "+cfg.Schema+".event e where e.seq > 1 and e.seq <= 50000 and e.roll order by e.seq limit 500")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, line)
	}
	if text := strings.Join(plan, "\n"); !strings.Contains(text, "event_roll") {
		t.Errorf("the plan is\n%s", text)
	}
}
