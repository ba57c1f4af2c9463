package postgres

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestTmpCost(t *testing.T) {
	ctx := context.Background()
	s, err := OpenConfig(ctx, Config{URL: os.Getenv("TMPURL"), Schema: "cost", AutoMigrate: true, QueryTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	conn, _ := s.pool.Acquire(ctx)
	c := conn.Conn()
	if os.Getenv("ANALYZE") != "" {
		c.Exec(ctx, "analyze")
	}
	cost := func(name, sql string, args ...any) {
		best := time.Hour
		for range 30 {
			b := &pgx.Batch{}
			b.Queue(writing)
			b.Queue("set local jit = off")
			for range 50 {
				b.Queue(sql, args...)
			}
			a := time.Now()
			if err := c.SendBatch(ctx, b).Close(); err != nil {
				t.Fatal(name, err)
			}
			best = min(best, time.Since(a)/50)
		}
		fmt.Printf("%10v %.60s\n", best, name)
	}
	cost("select 1", "select 1")
	cost("set transaction", "set lock_timeout = 5000")
	cost("beat", s.sql.get("beat"), "inc1", 5, 4, 0, 0)
	cost("state", s.sql.get("state"))
	cost("held", s.sql.get("held"), "inc1")
	cost("held1", "select u.daemon from cost.unit u where u.owner = $1", "inc1")
	cost("roll", s.sql.get("roll"), 5, 505)
	cost("waiting", s.sql.get("waiting"))
	text, _ := os.ReadFile("/tmp/pgx/q.sql")
	for _, q := range strings.Split(string(text), ";\n") {
		if strings.TrimSpace(q) != "" {
			cost(q, q)
		}
	}
}
