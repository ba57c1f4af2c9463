// Benchdoc runs the benchmarks behind the stated figures and writes the results into
// docs/measurements.md:
//
//	go run ./benchdoc [word …]
//
// Words select the suites whose packages contain one of them; without words all run. The parts of other
// suites stay unchanged.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// suite is a set of benchmarks that run together, so that their figures can be compared.
type suite struct {
	name, pkg, bench, time string
	env                    []string // more variables
	ratios                 []ratio
	peers                  bool                  // the results compare emitd with others: sideBySide shows them
	needs                  string                // a variable without which the suite is left out
	root                   bool                  // it is left out unless root runs it
	page                   string                // another page that shows short
	short                  func([]result) string // what that page shows of the results; nil: nothing
}

// ratio compares two benchmarks of one run by a metric, or is a metric that is already a ratio. More is
// better.
type ratio struct{ what, metric, over, under, promised string }

var suites = []suite{
	{
		name: "plan", pkg: "./internal/coordinator/plan", bench: "Full|NoChange|OneNodeLost|Size", time: "1s",
	},
	{name: "sim", pkg: "./internal/coordinator/sim", bench: "Sim$", time: "20s"},
	{
		name: "heartbeat", pkg: "./storage/postgres", bench: "Heartbeat", time: "5s",
		ratios: []ratio{
			{"one node, against four statements", "x", "BenchmarkHeartbeat/nodes=1/batchOverFourStatement", "", "≥ 1.8"},
			{"16 nodes, against four statements", "x", "BenchmarkHeartbeat/nodes=16/batchOverFourStatement", "", "≥ 3.5"},
			{"16 nodes, bare statements sent together, against four statements", "x", "BenchmarkHeartbeat/nodes=16/bareOverFourStatement", "", "reported"},
		},
	},
	{name: "journal", pkg: "./queue/internal/journal", bench: ".", time: "2s"},
	{name: "broker", pkg: "./queue/broker", bench: ".", time: "2s"},
	{name: "wire", pkg: "./queue/api", bench: ".", time: "3s"},
	{
		name: "osqueue", pkg: "./e2e/queue", bench: "Osqueue$", time: "3x", needs: "EMITD_TEST_OSQUEUE", page: "README.md", short: besideOsqueue,
		ratios: []ratio{
			{"1 client, against osqueue", "times", "BenchmarkOsqueue/memory/clients=1", "", "≥ 1.5"},
			{"16 clients, against osqueue", "times", "BenchmarkOsqueue/memory/clients=16", "", "≥ 1.5"},
			{"128 clients, against osqueue", "times", "BenchmarkOsqueue/memory/clients=128", "", "≥ 1.1"},
			{"128 clients, emitd in a directory, against osqueue in memory", "times", "BenchmarkOsqueue/directory/clients=128", "", "≥ 1"},
		},
	},
	{name: "nodes", pkg: "./e2e/hosts", bench: "Nodes$", time: "3x", root: true, page: scalePage, short: curve},
	{name: "cost", pkg: "./e2e/hosts", bench: "Cost$", time: "3x", root: true, page: scalePage, short: bill},
	{
		name: "outbox-postgres", pkg: "./outbox/postgres", bench: "Relay|Latency|Insert|Idle|AgainstEmit|Bloat", time: "5s", env: []string{"EMITD_TEST_LONG=1"},
		ratios: []ratio{
			{"relay, 400,000 waiting, against 20,000", "messages/s", "BenchmarkRelay/backlog=400000", "BenchmarkRelay/backlog=20000", "≥ 0.9"},
			{"relay, 10,000,000 waiting, against 20,000", "messages/s", "BenchmarkRelay/backlog=10000000", "BenchmarkRelay/backlog=20000", "≥ 0.9"},
			{"insert, one a transaction: processor time of Postgres, against a plain table", "pg-cpu-ns/message", "BenchmarkInsert/outbox/tx=1", "BenchmarkInsert/plain/tx=1", "≤ 1.4"},
			{"the same, keys in order of commit", "pg-cpu-ns/message", "BenchmarkInsert/ordered/tx=1", "BenchmarkInsert/plain/tx=1", "reported"},
			{"insert, 100 a transaction: processor time of Postgres, against a plain table", "pg-cpu-ns/message", "BenchmarkInsert/outbox/tx=100", "BenchmarkInsert/plain/tx=100", "≤ 1.4"},
			{"the same, keys in order of commit", "pg-cpu-ns/message", "BenchmarkInsert/ordered/tx=100", "BenchmarkInsert/plain/tx=100", "reported"},
			{"drained to nowhere: log and position, against the statements of Emit", "times", "BenchmarkAgainstEmit", "", "≥ 20"},
		},
	},
	{name: "outbox-sqlite", pkg: "./outbox/sqlite", bench: "Relay|Latency|Publish|Idle", time: "3s"},
	{
		name: "sinks", pkg: "./e2e/sink", bench: "EndToEnd", time: "2x", peers: true, page: "README.md", short: inShort,
	},
	{name: "sqs", pkg: "./outbox/sink/sqs", bench: "Drain", time: "3s"},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "benchdoc:", err)
		os.Exit(1)
	}
}

func run(words []string) error {
	document := filepath.Join("..", "docs", "measurements.md")
	for _, s := range suites {
		if len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(s.pkg+" "+s.name, w) }) {
			continue
		}
		if s.needs != "" && os.Getenv(s.needs) == "" {
			fmt.Printf("%s is left out: %s is not set\n", s.name, s.needs)
			continue
		}
		if s.root && os.Geteuid() != 0 {
			fmt.Printf("%s is left out: it makes network namespaces, so root must run it\n", s.name)
			continue
		}
		results, table, err := s.run()
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Print(table)
		if err := replace(document, s.name, table); err != nil {
			return err
		}
		if s.short != nil {
			if err := replace(filepath.Join("..", s.page), s.name, s.short(results)); err != nil {
				return err
			}
		}
	}
	if len(words) > 0 && !slices.Contains(words, "version") {
		return nil
	}
	table, err := version()
	if err != nil {
		return err
	}
	fmt.Print(table)
	return replace(document, "version", table)
}

// result is one line of a benchmark: metrics by unit.
type result struct {
	name    string
	metrics map[string]float64
	units   []string
}

var line = regexp.MustCompile(`^(Benchmark\S+?)(-\d+)?\s+\d+\s+(.*)$`)

// run runs the suite and returns its results, and their table.
func (s suite) run() ([]result, string, error) {
	dir, pkg := "..", s.pkg // the module above this one
	if own, is := strings.CutPrefix(s.pkg, "./e2e/"); is {
		dir, pkg = ".", "./"+own
	}
	cmd := exec.Command("go", "test", "-run", "^$", "-bench", s.bench, "-benchtime", s.time, "-benchmem", "-timeout", "60m", pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), s.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, "", fmt.Errorf("%w\n%s", err, out)
	}
	results := parse(out)
	if len(results) == 0 {
		return nil, "", fmt.Errorf("%s has no benchmark that matches %q", s.pkg, s.bench)
	}
	if s.peers {
		return results, sideBySide(results) + "\n" + costs(results), nil
	}
	var b strings.Builder
	b.WriteString("| benchmark | time | metrics |\n|---|---|---|\n")
	for _, r := range results {
		var rest []string
		for _, u := range r.units {
			if u != "ns/op" {
				rest = append(rest, number(r.metrics[u])+" "+u)
			}
		}
		took := time.Duration(r.metrics["ns/op"])
		fmt.Fprintf(&b, "| %s | %v | %s |\n", strings.TrimPrefix(r.name, "Benchmark"), round(took), strings.Join(rest, ", "))
	}
	if len(s.ratios) > 0 {
		b.WriteString("\n| ratio | | promised |\n|---|---|---|\n")
	}
	for _, r := range s.ratios {
		over, under := find(results, r.over, r.metric), 1.0
		if r.under != "" {
			under = find(results, r.under, r.metric)
		}
		if over == 0 || under == 0 {
			return nil, "", fmt.Errorf("no figures for %q", r.what)
		}
		fmt.Fprintf(&b, "| %s | %.2f× | %s |\n", r.what, over/under, r.promised)
	}
	return results, b.String(), nil
}

// ways are those who deliver the same messages, as they are called in the tables and in the metrics.
var ways = []struct{ title, metric string }{
	{"emitd", "messages/s"}, {"plain poller", "poller-messages/s"}, {"watermill-sql", "watermill-messages/s"}, {"River", "river-messages/s"},
}

// sideBySide returns a table with a row for each work, and a column for each who did it.
func sideBySide(results []result) string {
	var b strings.Builder
	b.WriteString("| receiver, round trip, keys |" + titles() + " emitd against the fastest of the others | plain poller, headers as emitd's |\n|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		name := strings.Split(r.name, "/")
		fmt.Fprintf(&b, "| %s |", strings.Join(name[1:], ", "))
		best := 0.0
		for i, w := range ways {
			fmt.Fprintf(&b, " %s |", number(r.metrics[w.metric]))
			if i > 0 {
				best = max(best, r.metrics[w.metric])
			}
		}
		fmt.Fprintf(&b, " %.2f× | %s |\n", r.metrics[ways[0].metric]/best, number(r.metrics["alike-messages/s"]))
	}
	return b.String()
}

// costs returns a table of what a message costs the process that delivers it, for each receiver without a round trip
// and with 500 keys.
func costs(results []result) string {
	var b strings.Builder
	b.WriteString("| a message, without a round trip, 500 keys | emitd | plain poller |\n|---|---|---|\n")
	for _, r := range results {
		name, is := strings.CutSuffix(r.name, "/rtt=0s/keys=500")
		if !is {
			continue
		}
		_, receiver, _ := strings.Cut(name, "/")
		fmt.Fprintf(&b, "| %s |", receiver)
		for _, way := range []string{"", "poller-"} {
			fmt.Fprintf(&b, " %s µs, %s bytes |", number(r.metrics[way+"cpu-µs/message"]), number(r.metrics[way+"allocated-B/message"]))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func titles() string {
	var b strings.Builder
	for _, w := range ways {
		b.WriteString(" " + w.title + " |")
	}
	return b.String()
}

// inShort returns a table of the results with a round trip of 2 ms: a row for each receiver, with its figures for one
// key and for 500.
func inShort(results []result) string {
	var b strings.Builder
	b.WriteString("| messages/s, one key / 500 keys |" + titles() + "\n|---|---|---|---|---|\n")
	for _, one := range results {
		name, is := strings.CutSuffix(one.name, "/rtt=2ms/keys=1")
		if !is {
			continue
		}
		_, receiver, _ := strings.Cut(name, "/")
		fmt.Fprintf(&b, "| %s |", receiver)
		for _, w := range ways {
			fmt.Fprintf(&b, " %s / %s |", number(one.metrics[w.metric]), number(find(results, name+"/rtt=2ms/keys=500", w.metric)))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// besideOsqueue is the README's table of the queue.
func besideOsqueue(results []result) string {
	var b strings.Builder
	b.WriteString("| jobs/s | emitd | osqueue, in memory | |\n|---|---|---|---|\n")
	for _, r := range results {
		where, clients, is := strings.Cut(strings.TrimPrefix(r.name, "BenchmarkOsqueue/"), "/clients=")
		if is {
			clients += " clients"
			if clients == "1 clients" {
				clients = "1 client"
			}
			fmt.Fprintf(&b, "| %s, emitd in %s | %s | %s | %.2f× |\n", clients, map[string]string{"memory": "memory", "directory": "a directory"}[where],
				number(r.metrics["jobs/s"]), number(r.metrics["osqueue-jobs/s"]), r.metrics["times"])
		}
	}
	return b.String()
}

const scalePage = "docs/explanation/scale.md"

// curve is the table of a queue on several nodes, and its drawing.
func curve(results []result) string {
	var table, drawing strings.Builder
	table.WriteString("| slow link | nodes | clients | jobs/s: median (least to most) | times one node | a job takes, p50 | link busy | requests/s | processor of a node, clients, store | idle |\n|---|---|---|---|---|---|---|---|---|---|\n")
	one := map[string]float64{} // jobs/s of one node, by the slow link and the number of clients
	for _, r := range results {
		var of, clients string
		var nodes int
		name := strings.NewReplacer("limit=", "", "nodes=", "", "clients=", "").Replace(strings.ReplaceAll(strings.TrimPrefix(r.name, "BenchmarkNodes/"), "/", " "))
		_, _ = fmt.Sscan(name, &of, &nodes, &clients) // the metrics of another name are shown as those of 0 nodes
		m, key := r.metrics, of+clients
		if nodes == 1 {
			one[key] = m["jobs/s"]
		}
		link := map[string]string{"store": "to the store", "all": "to everything"}[of]
		fmt.Fprintf(&table, "| %s | %d | %s | %s (%s to %s) | %.2f | %s ms | %.0f %% | %s | %.0f %%, %.0f %%, %.0f %% | %.0f %% |\n", link, nodes, clients,
			number(m["jobs/s"]), number(m["least-jobs/s"]), number(m["most-jobs/s"]), m["jobs/s"]/one[key], number(m["cycle-p50-ms"]), m["link-%"], number(m["requests/s"]),
			m["node-cpu-%"], m["clients-cpu-%"], m["store-cpu-%"], m["machine-idle-%"])
		fmt.Fprintf(&drawing, "slow link %-13s  nodes: %d, clients: %s  %s %s jobs/s\n", link, nodes, clients, strings.Repeat("█", int(m["jobs/s"]/barUnit+0.5)), number(m["jobs/s"]))
	}
	return table.String() + "\n```\n" + drawing.String() + "```\n"
}

// barUnit is how many jobs/s a block of the drawing stands for.
const barUnit = 4

// bill is the table of what the object store costs.
func bill(results []result) string {
	var b strings.Builder
	b.WriteString("| wanted | jobs/s | writes of 1,000 jobs | reads of 1,000 jobs | USD a month | submit p50 | p99 | processor of the node, clients, store | idle |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		m := r.metrics
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s ms | %s ms | %.0f %%, %.0f %%, %.0f %% | %.0f %% |\n", strings.ReplaceAll(strings.TrimPrefix(r.name, "BenchmarkCost/"), "/", ", "),
			number(m["jobs/s"]), number(m["writes/1000jobs"]), number(m["reads/1000jobs"]), number(m["USD/month"]), number(m["submit-p50-ms"]), number(m["submit-p99-ms"]),
			m["node-cpu-%"], m["clients-cpu-%"], m["store-cpu-%"], m["machine-idle-%"])
	}
	return b.String()
}

func find(all []result, name, metric string) float64 {
	for _, r := range all {
		if r.name == name {
			return r.metrics[metric]
		}
	}
	return 0
}

func parse(out []byte) (all []result) {
	for l := range bytes.Lines(out) {
		m := line.FindStringSubmatch(strings.TrimSpace(string(l)))
		if m == nil {
			continue
		}
		r := result{name: m[1], metrics: map[string]float64{}}
		f := strings.Fields(m[3])
		for i := 0; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				break
			}
			r.metrics[f[i+1]] = v
			r.units = append(r.units, f[i+1])
		}
		all = append(all, r)
	}
	return all
}

// number formats three digits, or whole numbers with thousands separated.
func number(v float64) string {
	if v < 100 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	digits := strconv.FormatInt(int64(v+0.5), 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + " " + digits[i:]
	}
	return digits
}

func round(d time.Duration) time.Duration {
	for unit := time.Duration(1); unit <= time.Second; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
	return d.Round(time.Second)
}

// version measures how long emitd version takes from start to end, over many runs.
func version() (string, error) {
	dir, err := os.MkdirTemp("", "emitd-benchdoc-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	bin := filepath.Join(dir, "emitd")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "./cmd/emitd")
	build.Dir = ".."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build emitd: %w\n%s", err, out)
	}
	var took []time.Duration
	for range 50 {
		began := time.Now()
		if err := exec.Command(bin, "version").Run(); err != nil {
			return "", fmt.Errorf("emitd version: %w", err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	info, err := os.Stat(bin)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("| program | | promised |\n|---|---|---|\n| `emitd version`, 50 times, p50 | %v | ≤ 20 ms |\n| `emitd version`, slowest | %v | |\n| size, stripped | %.1f MB | |\n",
		round(took[25]), round(took[49]), float64(info.Size())/1e6), nil
}

// replace writes a table between the marks of its part.
func replace(path, part, table string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+part+": begin (make bench) -->", "<!-- "+part+": end -->"
	before, rest, ok1 := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		return errors.New(path + " has no part for " + part)
	}
	return os.WriteFile(path, []byte(before+begin+"\n\n"+table+"\n"+end+after), 0o644)
}
