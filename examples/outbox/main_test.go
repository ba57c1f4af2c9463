package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// service is a webhook that records the messages it gets.
type service struct {
	mu   sync.Mutex
	seen map[string]bool
	got  map[string][]int // numbers of orders by customer, in the order of first arrival
}

func (s *service) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	var o order
	err := json.NewDecoder(req.Body).Decode(&o)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.seen[req.Header.Get("ce-id")] {
		return
	}
	s.seen[req.Header.Get("ce-id")] = true
	s.got[o.Customer] = append(s.got[o.Customer], o.Number)
}

// stored returns how many orders each customer has in the database.
func stored(t *testing.T, path string) map[string]int {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	out := map[string]int{}
	for _, customer := range []string{"ada", "bob", "eve"} {
		var n int
		if err := db.QueryRow(`SELECT count(*) FROM orders WHERE customer = ?`, customer).Scan(&n); err != nil {
			t.Fatal(err)
		}
		out[customer] = n
	}
	return out
}

// TestOrders runs the program on one file: without a relay, then with one, then twice at once. The
// messages that arrive must be those of the stored orders, in order for each customer, and none of a
// sold-out order.
func TestOrders(t *testing.T) {
	t.Parallel()
	s := &service{seen: map[string]bool{}, got: map[string][]int{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	o := options{db: filepath.Join(t.TempDir(), "orders.db"), webhook: server.URL, orders: 27, name: "a"}
	if err := run(context.Background(), o); err != nil { // no relay runs
		t.Fatal(err)
	}
	if len(s.got) > 0 {
		t.Errorf("%v arrived without a relay", s.got)
	}
	o.relay, o.orders = true, 0
	if err := run(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	for _, name := range []string{"b", "c"} {
		o := o
		o.name, o.orders = name, 30
		both.Go(func() {
			if err := run(context.Background(), o); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	total := 0
	for customer, n := range stored(t, o.db) {
		total += n
		if len(s.got[customer]) != n {
			t.Errorf("%s has %d orders, %d arrived", customer, n, len(s.got[customer]))
		}
		for i, number := range s.got[customer] {
			if number != i+1 { // sold-out orders use no number
				t.Errorf("the orders of %s came as %v", customer, s.got[customer])
				break
			}
		}
	}
	// 27 + 2·30 orders, 9 + 2·9 of them for one of the four lamps.
	if want := 87 - 27 + 4; total != want || len(s.seen) != want {
		t.Errorf("%d orders are stored and %d arrived, want %d", total, len(s.seen), want)
	}
}

// TestReceiver checks that the receiver in the process takes a repeated message once, and refuses a body
// that is not an order.
func TestReceiver(t *testing.T) {
	t.Parallel()
	r := &receiver{seen: map[string]bool{}}
	post := func(id, body string) int {
		req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		req.Header.Set("ce-id", id)
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		return w.Code
	}
	for _, c := range []struct {
		id, body   string
		want, seen int
	}{
		{"1", `{"customer":"ada","item":"pen"}`, http.StatusOK, 1},
		{"1", `{"customer":"ada","item":"pen"}`, http.StatusOK, 1},
		{"2", `{"customer":"ada","item":"pen"}`, http.StatusOK, 2},
		{"3", `pen`, http.StatusBadRequest, 2},
	} {
		if got := post(c.id, c.body); got != c.want || len(r.seen) != c.seen {
			t.Errorf("%s %s: answer %d with %d known, want %d with %d", c.id, c.body, got, len(r.seen), c.want, c.seen)
		}
	}
}
