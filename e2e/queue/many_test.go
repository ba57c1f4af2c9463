package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/dir"
)

// TestDrillManyQueues starts three nodes at the same moment on a bucket with ten thousand declared queues. Then it
// kills all of them, and starts three others. Each time every queue must be served. It reports how long that
// takes, what an idle queue takes of the nodes' memory, and the requests that idle queues make. Go collects garbage when
// the heap has doubled, so up to twice of what is live is resident.
func TestDrillManyQueues(t *testing.T) {
	drill.ParallelUnlessMeasured(t)
	queues := 200
	if drill.Full() {
		queues = 10_000
	}
	m := &manyQueues{T: t, path: filepath.Join(t.TempDir(), "objects"), queues: queues}
	m.c = cluster(t, place{url: "file://" + m.path + "?sync=false"})
	empty := m.start("empty")
	m.c.Until(time.Minute, "the list of queues is written", func() bool { return m.list() != nil })
	resident, live := m.resident(empty), m.live(empty)
	m.kill()
	m.declare()
	for _, what := range []string{"first start", "start after kill -9 of all nodes"} {
		nodes := m.start(strings.Fields(what)[0])
		began := time.Now()
		m.c.Until(10*time.Minute, "every queue is served", func() bool { return m.served(nodes) >= queues })
		took := time.Since(began)
		m.c.Pass(5 * time.Second) // the shards fall idle
		requests := m.requests(nodes)
		m.c.Pass(10 * time.Second)
		name := fmt.Sprintf("%d queues on 3 nodes, %s", queues, what)
		drill.Measure(t, name+", all served", drill.Bound{Other: "wanted: 60s on a quiet machine"}, []time.Duration{took})
		drill.Amount(t, name+", an idle queue (wanted: 20 kB)", (m.live(nodes)-live)/float64(queues), "kB live", 0)
		drill.Amount(t, name+", an idle queue, resident", (m.resident(nodes)-resident)/float64(queues), "kB", 0)
		drill.Amount(t, name+", requests in 10s of idleness", float64(m.requests(nodes)-requests), "of 3 nodes", 60)
		m.use()
		m.kill()
	}
}

// manyQueues is a cluster with many queues.
type manyQueues struct {
	*testing.T
	c      *drill.Cluster
	path   string // of the bucket
	queues int
}

func (m *manyQueues) name(n int) string { return fmt.Sprintf("many-%05d", n) }

// start starts three nodes, and returns when all listen.
func (m *manyQueues) start(name string) (nodes []*drill.Node) {
	for n := range 3 {
		nodes = append(nodes, m.c.Start(fmt.Sprintf("%s-%d", name, n)))
	}
	for _, n := range nodes {
		m.c.Until(time.Minute, "the node listens", func() bool { return n.Address() != "" })
	}
	return nodes
}

func (m *manyQueues) kill() {
	for _, n := range m.c.Nodes() {
		if n.Alive() {
			n.Kill()
		}
	}
}

// open opens the bucket.
func (m *manyQueues) open() *dir.Bucket {
	bucket, err := dir.Open(dir.Config{Path: m.path, NoSync: true})
	if err != nil {
		m.Fatal(err)
	}
	return bucket
}

// list reads the list of queues; nil: there is none yet.
func (m *manyQueues) list() *blob.Object {
	list, err := m.open().Read(m.Context(), "v1/queues")
	if err != nil && !errors.Is(err, blob.ErrNotFound) {
		m.Fatal(err)
	}
	return list
}

// declare writes a list with all queues. To declare them one after the other would write the list once for each.
func (m *manyQueues) declare() {
	list := m.list()
	var file map[string]any
	if err := json.Unmarshal(list.Data, &file); err != nil {
		m.Fatal(err)
	}
	entry := file["queues"].([]any)[0].(map[string]any)
	var all []map[string]any
	for n := range m.queues {
		q := map[string]any{}
		for k, v := range entry {
			q[k] = v
		}
		q["name"], q["incarnation"] = m.name(n), n+1
		all = append(all, q)
	}
	file["queues"], file["next_incarnation"], file["serial"], file["nonce"] = all, m.queues, file["serial"].(float64)+1, "many"
	data, err := json.Marshal(file)
	if err == nil {
		_, err = m.open().Replace(m.Context(), "v1/queues", data, list.Version)
	}
	if err != nil {
		m.Fatal(err)
	}
}

// served counts the shards that the nodes have taken over.
func (m *manyQueues) served(nodes []*drill.Node) (n int) {
	for _, node := range nodes {
		alive(m.T, node)
		n += strings.Count(node.Output(), `"msg":"took over a shard of a queue"`)
	}
	return n
}

// resident returns the resident memory of the nodes in kB.
func (m *manyQueues) resident(nodes []*drill.Node) (kb float64) {
	for _, n := range nodes {
		kb += n.Resident() * 1000
	}
	return kb
}

// live returns the memory of the nodes in kB that the last collections of garbage left, stacks included. The goal of
// the next one is twice the heap that was left, plus the stacks and a little more.
func (m *manyQueues) live(nodes []*drill.Node) (kb float64) {
	for _, n := range nodes {
		page := probe(m.T, "http://"+n.Address()+"/metrics")
		kb += (m.metric(page, "go_memory_gc_goal_bytes") + m.metric(page, `go_memory_used_bytes{go_memory_type="stack"}`)) / 2 / 1000
	}
	return kb
}

// metric returns the value of a series.
func (m *manyQueues) metric(page, series string) float64 {
	_, text, _ := strings.Cut(page, "\n"+series+" ")
	text, _, _ = strings.Cut(text, "\n")
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		m.Fatalf("%s: %v", series, err)
	}
	return v
}

// requests returns how many requests the nodes have made to the bucket.
func (m *manyQueues) requests(nodes []*drill.Node) (n int64) {
	for _, node := range nodes {
		_, body, _ := strings.Cut(probe(m.T, "http://"+node.Address()+"/v1/throttle-stats"), "{")
		var s struct{ TotalReads, TotalWrites int64 }
		if err := json.Unmarshal([]byte("{"+body), &s); err != nil {
			m.Fatal(err)
		}
		n += s.TotalReads + s.TotalWrites
	}
	return n
}

// use submits a job to some of the queues.
func (m *manyQueues) use() {
	q := reach(m.T, m.c)
	ctx, cancel := context.WithTimeout(m.Context(), 2*time.Minute)
	defer cancel()
	for n := 0; n < m.queues; n += max(1, m.queues/50) {
		if _, err := q.Enqueue(ctx, m.name(n), []queue.Job{{Payload: []byte("x")}}); err != nil {
			m.Fatal(err)
		}
	}
}
