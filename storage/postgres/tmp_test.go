package postgres_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/emitd/emitd/internal/pgtest"
)

func cpu(pids []string) (total time.Duration) {
	for _, p := range pids {
		b, err := os.ReadFile("/proc/" + p + "/stat")
		if err != nil { continue }
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+2:]))
		u, _ := strconv.Atoi(f[11]); s, _ := strconv.Atoi(f[12])
		total += time.Duration(u+s) * 10 * time.Millisecond
	}
	return
}

func BenchmarkTmpCPU(b *testing.B) {
	server, err := pgtest.Start(pgtest.Config{Durable: os.Getenv("NODUR") == ""})
	if err != nil { b.Fatal(err) }
	defer server.Close()
	url := server.URL("postgres")
	for _, nodes := range []int{1, 16} {
	for _, f := range []struct{name string; tick func(int) error}{{"batch", batchForm(b, url, fmt.Sprint("batch",nodes), nodes)},{"four", fourForm(b, url, fmt.Sprint("four",nodes), nodes, pgx.QueryExecModeExec)},{"prepared", fourForm(b, url, fmt.Sprint("prep",nodes), nodes, pgx.QueryExecModeCacheStatement)}} {
		const N = 4000
		b.N = 200
		race(b, nodes, f.tick)
		b.N = N
		out, _ := exec.Command("pgrep", "-P", fmt.Sprint(server.PID())).Output()
		pids := strings.Fields(string(out))
		var r0, r1 syscall.Rusage
		syscall.Getrusage(0, &r0)
		c0 := cpu(pids)
		t0 := time.Now()
		race(b, nodes, f.tick)
		el := time.Since(t0)
		c1 := cpu(pids)
		syscall.Getrusage(0, &r1)
		cl := time.Duration(r1.Utime.Nano()+r1.Stime.Nano()-r0.Utime.Nano()-r0.Stime.Nano())
		fmt.Printf("%d %-10s wall %v  server cpu %v  client cpu %v\n", nodes, f.name, el/N, (c1-c0)/N, cl/N)
	}}
}
