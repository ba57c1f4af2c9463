package object

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
)

// full is a cluster with something in every field.
func full() *cluster {
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	who := node.Identity{Name: "узел \"1\"\n", ID: "id", Incarnation: "inc"}
	unit := daemon.Unit{Daemon: "acme:a/b", Index: 7}
	doubt := uint64(3)
	c := newHistory(41)
	c.advance()
	c.KnownID, c.IdentityChangedAt, c.Name = "other", at, "production"
	c.Term = node.Term{Number: 5, Ordinal: 2, Leader: who, ElectedAt: at, Vacant: true}
	c.Lease = node.Lease{ExpiresAt: at, Renewals: 9, LastPassAt: at, PassSeq: 4}
	c.Members = []*member{{Member: node.Member{Identity: who, State: node.Live, Seq: 3, Advert: "hash", RegisteredAt: at}, Left: true, BeatSeq: 2, BeatsInCluster: true, Doubt: &doubt}}
	c.Units = []*daemon.Record{{Unit: unit, State: "of a newer version", Holder: who, Generation: 6, Since: at, Embargoes: []daemon.Embargo{{Incarnation: "x", Strikes: 1}}}}
	c.Fences = map[daemon.Unit]int64{unit: 6}
	c.UnitStates = map[daemon.Unit]daemon.UnitState{unit: {Unit: unit, Generation: 6, Revision: 2, SavedAt: at, Data: json.RawMessage(`{"a":1}`)}}
	c.Adverts = map[string]*daemon.Advert{"hash": {Kinds: []daemon.Kind{"a"}, Specs: []daemon.Spec{{ID: "a", Requires: map[string]string{"k": "v"}}}}}
	c.Segments = []segment{{First: 1, Count: 4, Nonce: 77, At: at}}
	c.Ring = []daemon.Event{{Seq: 5, At: at, Kind: daemon.LeaderElected, Unit: unit, Detail: json.RawMessage(`{"a":[1]}`)}}
	c.Oldest, c.Head, c.LastMemberEvent = 3, 5, 4
	c.Commands = []*storage.Command{{ID: "c", Kind: "k", Args: json.RawMessage(`{}`), CreatedAt: at, Cooldown: time.Second}}
	c.Locks = map[string]storage.Lock{"l": {Name: "l", Owner: "o", Number: 3, Renewals: 2, TTL: time.Minute, ExpiresAt: at}}
	c.LockFloor, c.GenerationFloor = 2, 40
	return c
}

func TestClusterSurvives(t *testing.T) {
	t.Parallel()
	want := full()
	data, err := seal(kindCluster, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(&blob.Object{Data: data, Version: "v"})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.cluster, want) || got.version != "v" {
		t.Errorf("%+v\nwant\n%+v", got.cluster, want)
	}
	v := reflect.ValueOf(*want)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("this test says nothing of the field %s", v.Type().Field(i).Name)
		}
	}
	if clone := want.clone(); !reflect.DeepEqual(clone, want) {
		t.Errorf("the clone is %+v", clone)
	}
	if len(data) > 1200 {
		t.Errorf("%d bytes", len(data))
	}
}

// An object is written in the oldest format that has its fields, so that programs of earlier versions read it until
// the first unit has a state or a key.
func TestOldestFormat(t *testing.T) {
	t.Parallel()
	c := full()
	key := &daemon.Record{Unit: daemon.Unit{Daemon: "acme:a", Key: "k"}}
	for _, step := range []struct {
		change func()
		format string
	}{
		{func() {}, "emitd cluster 3 "}, // a key was swept once
		{func() { c.GenerationFloor, c.Units = 0, append(c.Units, key) }, "emitd cluster 3 "},
		{func() { c.Units = c.Units[:len(c.Units)-1] }, "emitd cluster 2 "},
		{func() { c.UnitStates = nil }, "emitd cluster 1 "},
	} {
		step.change()
		if data, err := seal(kindCluster, c); err != nil || !bytes.HasPrefix(data, []byte(step.format)) {
			t.Errorf("%.20q, %v; want %s", data, err, step.format)
		}
	}
	if data, err := seal(kindNode, &pulse{Seq: 1}); err != nil || !bytes.HasPrefix(data, []byte("emitd node 1 ")) {
		t.Errorf("%.20q, %v", data, err)
	}
}

// line makes an object with a given first line.
func line(k kind, version int, text []byte) []byte {
	return append(fmt.Appendf(nil, "emitd %s %d %08x\n", k, version, crc32.ChecksumIEEE(text)), text...)
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	good, err := seal(kindNode, pulse{Seq: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := open(kindNode, good, &pulse{}); err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)-3] ^= 1
	for story, data := range map[string][]byte{
		"nothing":                     nil,
		"no line":                     []byte("emitd node 1 00000000"),
		"an endless line":             append(bytes.Repeat([]byte("x"), 100), '\n'),
		"another kind":                line(kindEvents, 1, []byte("{}")),
		"half of it":                  good[:len(good)/2],
		"a flipped bit":               flipped,
		"no version":                  line(kindNode, 0, []byte("{}")),
		"another way to write a line": []byte(strings.Replace(string(line(kindNode, 1, []byte("{}"))), "node 1", "node 01", 1)),
		"an unknown field":            line(kindNode, 1, []byte(`{"seq":1,"more":2}`)),
		"two texts":                   line(kindNode, 1, []byte(`{"seq":1}{}`)),
		"a wrong type":                line(kindNode, 1, []byte(`{"seq":-1}`)),
		"no JSON":                     line(kindNode, 1, []byte(`seq`)),
	} {
		if err := open(kindNode, data, &pulse{}); !errors.Is(err, blob.ErrCorrupt) {
			t.Errorf("%s: %v", story, err)
		}
	}
	if err := open(kindEvents, line(kindEvents, 1, []byte("not deflated")), &eventBatch{}); !errors.Is(err, blob.ErrCorrupt) {
		t.Errorf("not deflated: %v", err)
	}
	err = open(kindNode, line(kindNode, 9, []byte(`{"more":2}`)), &pulse{})
	if !errors.Is(err, storage.ErrSchema) || errors.Is(err, blob.ErrCorrupt) {
		t.Errorf("a newer version: %v", err)
	}
}

func TestValidRefuses(t *testing.T) {
	t.Parallel()
	if err := full().valid(); err != nil {
		t.Fatal(err)
	}
	for story, spoil := range map[string]func(c *cluster){
		"no number":                 func(c *cluster) { c.N = 0 },
		"no store id":               func(c *cluster) { c.StoreID = "" },
		"an empty row of a node":    func(c *cluster) { c.Members = append(c.Members, nil) },
		"an empty row of a unit":    func(c *cluster) { c.Units = append(c.Units, nil) },
		"an empty command":          func(c *cluster) { c.Commands = append(c.Commands, nil) },
		"a node twice":              func(c *cluster) { c.Members = append(c.Members, c.Members[0]) },
		"a unit twice":              func(c *cluster) { c.Units = append(c.Units, c.Units[0]) },
		"a gap in the ring":         func(c *cluster) { c.Ring = append(c.Ring, daemon.Event{Seq: 7}); c.Head = 6 },
		"a head without its event":  func(c *cluster) { c.Head++ },
		"a gap before the ring":     func(c *cluster) { c.Segments[0].Count-- },
		"a lost first segment":      func(c *cluster) { c.Segments = nil },
		"an oldest before the rest": func(c *cluster) { c.Segments[0].First, c.Segments[0].Count = 4, 1 },
		"an oldest beyond the head": func(c *cluster) { c.Oldest = 7 },
		"an empty segment":          func(c *cluster) { c.Segments = append(c.Segments, segment{First: 5}) },
		"an endless segment":        func(c *cluster) { c.Segments[0].First, c.Segments[0].Count = 5-maxSegment-1, maxSegment+1 },
	} {
		c := full()
		if spoil(c); c.valid() == nil {
			t.Errorf("%s: taken for valid", story)
		}
	}
}

// TestNonces: what a content says about the contents before it.
func TestNonces(t *testing.T) {
	t.Parallel()
	c := newHistory(0)
	contents := map[uint64]*cluster{1: c}
	for range 2 * keepPast {
		c = c.clone()
		c.advance()
		contents[c.N] = c
	}
	for n, old := range contents {
		nonce, known := c.nonceOf(n)
		if want := c.N-n <= keepPast; known != want || known && nonce != old.Nonce {
			t.Errorf("content %d of %d: nonce %x, %v, want %x, %v", n, c.N, nonce, known, old.Nonce, want)
		}
		if !c.continues(old) {
			t.Errorf("content %d does not continue %d", c.N, n)
		}
		if n != c.N && old.continues(c) {
			t.Errorf("content %d continues %d", n, c.N)
		}
		other := old.clone()
		other.Nonce++
		if known && c.continues(other) {
			t.Errorf("content %d continues another %d", c.N, n)
		}
	}
	if _, known := c.nonceOf(c.N + 1); known {
		t.Error("the nonce of the next content is known")
	}
}

// TestPulseKeys: whatever the name of a process is, it has a key of its own.
func TestPulseKeys(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, inc := range []node.Incarnation{"0198c5a2-0002-7000-8000-000000000001", "A", "a", ".", "", "a/b", "x-", node.Incarnation(strings.Repeat("n", 500)), "узел"} {
		key := pulseKey(inc)
		if err := blob.CheckKey(key); err != nil || seen[strings.ToLower(key)] {
			t.Errorf("%q: %q, %v", inc, key, err)
		}
		seen[strings.ToLower(key)] = true
	}
}

// FuzzOpen: no bytes make a decoder panic, and every accepted content can be used and written
// again.
func FuzzOpen(f *testing.F) {
	for k, v := range map[kind]any{kindCluster: full(), kindNode: pulse{Seq: 3}, kindEvents: eventBatch{full().Ring}} {
		data, err := seal(k, v)
		if err != nil {
			f.Fatal(err)
		}
		_, text, _ := bytes.Cut(data, []byte("\n"))
		if k.compressed() {
			if text, err = inflate(text); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(data, text)
	}
	f.Fuzz(func(t *testing.T, data, text []byte) {
		for _, d := range [][]byte{data, line(kindCluster, format, deflate(text))} {
			v, err := decode(&blob.Object{Data: d})
			if err != nil {
				continue
			}
			c := v.clone()
			c.list()
			c.HeldBy("inc")
			c.Commands.Open()
			c.dropEvents(1)
			c.advance()
			again, err := seal(kindCluster, c)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := decode(&blob.Object{Data: again}); err != nil && c.Oldest <= c.Head+1 {
				t.Fatal(err)
			}
		}
		_ = open(kindNode, line(kindNode, format, text), &pulse{})
		var l eventBatch
		if open(kindEvents, line(kindEvents, format, deflate(text)), &l) == nil {
			_ = segment{First: 1, Count: len(l.Events)}.fits(l.Events)
		}
	})
}
