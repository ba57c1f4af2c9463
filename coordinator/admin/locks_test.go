package admin

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator/lock"
	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/storage"
)

// TestLocks: the held locks page by page, who holds each, and which one its holder does not renew any more.
func TestLocks(t *testing.T) {
	inCluster(t, func(t *testing.T, store storage.Store) {
		a := api(t, store)
		list := func(query string) body.LockPage {
			var p body.LockPage
			if w := do(t, a, request(t, "GET", root+"/locks"+query, ""), &p); w.Code != 200 || p.Locks == nil {
				t.Fatalf("%s: %d %s", query, w.Code, w.Body)
			}
			return p
		}
		if p := list(""); len(p.Locks) != 0 || p.Cursor != nil {
			t.Errorf("nobody has a lock: %+v", p)
		}
		began := time.Now()
		locks, err := lock.New(store.(storage.Locker), lock.Config{Holder: "web-1:7", Clock: func() time.Duration { return time.Since(began) }})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, name := range []string{"sweep", "nightly report", "import/a"} {
			held, err := locks.TryAcquire(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			defer held.Release(t.Context())
		}
		if _, err := store.(storage.Locker).Acquire(t.Context(), "dead", "somebody", time.Second, storage.Lock{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for next := ""; ; {
			p := list("?limit=3&cursor=" + url.QueryEscape(next))
			for _, l := range p.Locks {
				got = append(got, l.Name)
				if dead := l.Name == "dead"; l.Overdue != dead || (l.Holder == "web-1:7") == dead || !strings.HasPrefix(l.Owner, l.Holder) || l.Number == 0 {
					t.Errorf("%+v", l)
				}
				if since := p.At.Sub(l.RenewedAt.Time); l.Name != "dead" && (since < 0 || since > 10*time.Second || l.TTLMS != 30_000 || l.Renewals == 0) {
					t.Errorf("%v ago: %+v", since, l)
				}
			}
			if p.Cursor == nil {
				break
			}
			next = *p.Cursor
		}
		if strings.Join(got, ", ") != "dead, import/a, nightly report, sweep" {
			t.Errorf("got %q", got)
		}
	})
}
