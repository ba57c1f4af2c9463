package queue

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/testproc"
)

// BenchmarkOsqueue measures osqueue's cycle of three calls (submit, claim, complete), in turns at emitd's program, on a store
// in memory and then in a directory, and at osqueue's broker, which is in memory, with the clients of emitd queue bench. EMITD_TEST_OSQUEUE names the script that
// starts the broker on the port in PORT; docs/explanation/queue.md says how it is built.
func BenchmarkOsqueue(b *testing.B) {
	script := os.Getenv("EMITD_TEST_OSQUEUE")
	if script == "" {
		b.Fatal("EMITD_TEST_OSQUEUE names no script that starts osqueue's broker: docs/explanation/queue.md says how to build it")
	}
	address := freeAddress(b)
	_, port, _ := net.SplitHostPort(address)
	broker := exec.Command("node", script)
	broker.Env = append(os.Environ(), "PORT="+port)
	listening(b, address, broker)
	for _, kind := range []struct {
		store, objects string
		clients        []int
	}{
		{"memory", "mem://", []int{1, 16, 128}},
		{"directory", "file://" + b.TempDir(), []int{128}},
	} {
		own := freeAddress(b)
		listening(b, own, exec.Command(drill.Binary(b), "serve", "--store", "sqlite://"+filepath.Join(b.TempDir(), "emitd.db"), "--objects", kind.objects, "--listen", own))
		for _, clients := range kind.clients {
			b.Run(fmt.Sprintf("%s/clients=%d", kind.store, clients), func(b *testing.B) {
				var emitd, osqueue float64
				for b.Loop() {
					emitd += jobsPerSecond(b, own, clients)
					osqueue += jobsPerSecond(b, address, clients)
				}
				b.ReportMetric(emitd/float64(b.N), "jobs/s")
				b.ReportMetric(osqueue/float64(b.N), "osqueue-jobs/s")
				b.ReportMetric(emitd/osqueue, "times")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// freeAddress returns a loopback address at which nobody listens.
func freeAddress(b *testing.B) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// listening starts a server, and returns when it listens.
func listening(b *testing.B, address string, cmd *exec.Cmd) {
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	p, err := testproc.Start(cmd)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		p.Signal(syscall.SIGTERM)
		<-p.Done
	})
	for until := time.After(time.Minute); ; {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
			return
		}
		select {
		case <-p.Done:
			b.Fatalf("%s has ended: %v\n%s", cmd, p.Err(), &log)
		case <-until:
			b.Fatalf("%s: %v", cmd, err)
		default:
			_ = backoff.Sleep(b.Context(), 50*time.Millisecond)
		}
	}
}

// jobsPerSecond measures for five seconds.
func jobsPerSecond(b *testing.B, address string, clients int) float64 {
	cmd := exec.Command(drill.Binary(b), "queue", "bench", "default", "--protocol", "osqueue", "--clients", fmt.Sprint(clients), "--addr", address, "-o", "json")
	out, err := cmd.Output()
	var all []struct {
		Rate   float64 `json:"jobs_per_second"`
		Failed int     `json:"failed_calls"`
		Error  string  `json:"error"`
	}
	if err == nil {
		err = json.Unmarshal(out, &all)
	}
	if err != nil || len(all) != 1 || all[0].Failed > 0 {
		b.Fatalf("%v: %s", err, out)
	}
	return all[0].Rate
}
