package outbox

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/emitd/emitd/internal/pgtest"
)

// TestExample runs the order service on Postgres with NATS: two processes at once, 120 orders each. The
// stream must have exactly the orders of the table, those of each customer in their order, and none
// twice.
func TestExample(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "orders")
	build := exec.Command("go", "build", "-o", bin, "./examples/outbox")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	url, js := startNATS(t)
	database := pgtest.Database(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ended := make(chan error, 2)
	for _, name := range []string{"a", "b"} {
		go func() {
			cmd := exec.CommandContext(ctx, bin, "-postgres", database, "-nats", url, "-orders", "120", "-name", name)
			out, err := cmd.CombinedOutput()
			t.Logf("%s:\n%s", name, out)
			ended <- err
		}()
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	total := stored(ctx, t, database)
	numbers, seen := ordersIn(t, js), 0
	for customer, list := range numbers {
		seen += len(list)
		for i, n := range list {
			if n != i+1 { // sold-out orders use no number
				t.Errorf("the orders of %s came as %v", customer, list)
				break
			}
		}
	}
	if total == 0 || seen != total {
		t.Errorf("%d orders are stored, %d are in the stream", total, seen)
	}
}

// stored returns the number of orders.
func stored(ctx context.Context, t *testing.T, url string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, `SELECT count(*) FROM orders`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// ordersIn returns the numbers of each customer's orders in the stream.
func ordersIn(t *testing.T, js jetstream.JetStream) map[string][]int {
	t.Helper()
	out := map[string][]int{}
	for _, m := range messagesIn(t, js) {
		var o struct {
			Customer string
			Number   int
		}
		if err := json.Unmarshal(m.Data(), &o); err != nil {
			t.Fatal(err)
		}
		out[o.Customer] = append(out[o.Customer], o.Number)
	}
	return out
}
