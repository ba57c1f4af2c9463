package memory

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/emitd/emitd/daemon"
)

// The table is compared with its plain form: a map that is sorted when it is read.
func TestTable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		table, plain := &table{}, map[daemon.Unit]daemon.Record{}
		var readers, were [][]daemon.Record
		read := func() []daemon.Record {
			out := slices.SortedFunc(maps.Values(plain), func(a, b daemon.Record) int { return a.Unit.Compare(b.Unit) })
			return out
		}
		for range rapid.IntRange(0, 40).Draw(rt, "steps") {
			u := daemon.Unit{Daemon: rapid.SampledFrom([]daemon.ID{"a", "b", "a/1"}).Draw(rt, "daemon"), Index: rapid.IntRange(0, 4).Draw(rt, "index")}
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0, 1:
				r := daemon.Record{Unit: u, Generation: rapid.Int64().Draw(rt, "generation")}
				plain[u] = r
				table.put(&r)
			case 2:
				delete(plain, u)
				table.remove(u)
			case 3:
				table = table.clone()
			}
			got, ok := plain[u]
			if r := table.get(u); (r != nil) != ok || ok && !reflect.DeepEqual(*r, got) {
				rt.Fatalf("get %s is %+v, want %+v (%v)", u, r, got, ok)
			}
			all := table.all()
			if want := read(); len(all) != len(want) || len(all) > 0 && !reflect.DeepEqual(all, want) {
				rt.Fatalf("all is %+v, want %+v", all, want)
			}
			readers, were = append(readers, all), append(were, slices.Clone(all))
		}
		for i := range readers {
			if len(readers[i]) > 0 && !reflect.DeepEqual(readers[i], were[i]) {
				rt.Fatalf("what reader %d was given has changed", i)
			}
		}
	})
}
