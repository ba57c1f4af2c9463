package postgres

import (
	"context"
	"fmt"
	"os"
	"strings"
	"strconv"
	"testing"
	"time"
	"runtime"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

func cpu1(p string) time.Duration {
	b, _ := os.ReadFile("/proc/" + p + "/schedstat")
	f := strings.Fields(string(b))
	n, _ := strconv.ParseInt(f[0], 10, 64)
	return time.Duration(n)
}

func TestTmpElim(t *testing.T) {
	ctx := context.Background()
	s, err := OpenConfig(ctx, Config{URL: os.Getenv("TMPURL"), Schema: "cost2", AutoMigrate: true, QueryTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	id := node.Identity{Name: "a", ID: "a", Incarnation: node.Incarnation(fmt.Sprint("inc", time.Now().UnixNano()))}
	_, err = s.Heartbeat(ctx, storage.Heartbeat{Node: id, Seq: 1, TTL: time.Minute, Advert: &daemon.Advert{}})
	if err != nil {
		t.Fatal(err)
	}
	conn, _ := s.pool.Acquire(ctx)
	c := conn.Conn()
	pid := fmt.Sprint(c.PgConn().PID())
	if os.Getenv("ANALYZE") != "" { c.Exec(ctx, "analyze") }
	seq := 1
	run := func(name string, fill func(m *message)) {
		const N = 1500
		best := time.Hour
		var cbest time.Duration
		for range 3 {
		runtime.GC()
		a := cpu1(pid)
		for range N {
			seq++
			m := &message{statements: s.sql}
			fill(m)
			if err := m.send(ctx, c.PgConn()); err != nil {
				t.Fatal(err)
			}
		}
		if d := (cpu1(pid)-a)/N; d < best { best = d }
		}
		fmt.Printf("%-30s server cpu %v %v\n", name, best, cbest)
	}
	b := func(m *message) { m.begin(writing, time.Second, time.Second) }
	beat := func(m *message) { m.do("beat", inc(id), seq, seq-1, 0, 0) }
	run("select 1", func(m *message) { m.set("select 1") })
	run("begin", func(m *message) { b(m); m.set("select 1") })
	run("begin w/o datestyle", func(m *message) { m.set(writing); m.set("set local statement_timeout = 1000"); m.set("set local lock_timeout = 1000");m.set("set local jit = off"); m.set("select 1") })
	run("beat only", func(m *message) { beat(m) })
	run("beat plain", func(m *message) { m.set("update cost2.node set seq = "+fmt.Sprint(seq)+" where incarnation = '"+inc(id)+"'") })
	run("begin+beat", func(m *message) { b(m); beat(m) })
	run("+state", func(m *message) { b(m); beat(m); m.do("state") })
	run("+state,held", func(m *message) { b(m); beat(m); m.do("state"); m.do("held", inc(id)) })
	run("+state,held,roll", func(m *message) { b(m); beat(m); m.do("state"); m.do("held", inc(id)); m.do("roll", 100, 600) })
	run("+state,held,roll,waiting", func(m *message) { b(m); beat(m); m.do("state"); m.do("held", inc(id)); m.do("roll", 100, 600); m.do("waiting") })
	run("state", func(m *message) { m.do("state")})
	run("held", func(m *message) { m.do("held", inc(id))})
}
