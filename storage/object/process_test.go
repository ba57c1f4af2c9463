package object_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob/dir"
	"github.com/emitd/emitd/storage/object"
)

// childDir names the directory that a child process of these tests works in.
const childDir = "EMITD_TEST_OBJECT_DIR"

func TestMain(m *testing.M) {
	if root := os.Getenv(childDir); root != "" {
		fmt.Fprintln(os.Stderr, child(root))
		os.Exit(1) // reached only after an error: the child runs until it is killed
	}
	goleak.VerifyTestMain(m)
}

// child submits commands for ever, and prints the ID of each that was acknowledged.
func child(root string) error {
	bucket, err := dir.Open(dir.Config{Path: root, NoSync: true})
	if err != nil {
		return err
	}
	s, err := object.Open(context.Background(), bucket, object.Config{NoProbe: true})
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		id := fmt.Sprintf("%d-%d", os.Getpid(), i)
		if _, err := s.Submit(context.Background(), storage.Command{ID: id, Kind: daemon.CommandResign, Term: 1}); err != nil {
			return err
		}
		fmt.Println(id)
	}
}

// TestKilled: processes are killed at random moments. Each acknowledged step has happened once,
// none has half happened, and the remaining processes go on.
func TestKilled(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	watcher := open(t, directory(t, root), object.Config{})
	acknowledged := map[string]bool{}
	var mu sync.Mutex
	var children sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 3 {
		children.Go(func() {
			for _, last := range []int{30 + 7*i, 20 + 11*i} { // then another takes its place
				cmd := exec.CommandContext(ctx, os.Args[0]) // this very test
				cmd.Env, cmd.Stderr = append(os.Environ(), childDir+"="+root), t.Output()
				out, err := cmd.StdoutPipe()
				if err == nil {
					err = cmd.Start()
				}
				if err != nil {
					t.Error(err)
					return
				}
				lines := bufio.NewScanner(out)
				for n := 0; lines.Scan(); n++ {
					mu.Lock()
					acknowledged[lines.Text()] = true
					mu.Unlock()
					if n == last {
						_ = cmd.Process.Kill()
					}
				}
				_ = cmd.Wait() // killed
			}
		})
	}
	children.Wait()
	page, err := watcher.Events(t.Context(), 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for i, e := range page.Events {
		var detail struct{ Command string }
		if err := json.Unmarshal(e.Detail, &detail); err != nil || e.Seq != int64(i+1) || e.Kind != daemon.CommandResign.Event() {
			t.Fatalf("event %d is %+v: %v", i+1, e, err)
		}
		found[detail.Command]++
	}
	for id := range acknowledged {
		if found[id] != 1 {
			t.Errorf("command %s was acknowledged and stands %d times in the history", id, found[id])
		}
	}
	t.Logf("%d acknowledged, %d in the history", len(acknowledged), len(found))
	if len(acknowledged) < 100 || len(found) > len(acknowledged)+6 {
		t.Errorf("%d acknowledged, %d in the history of 6 processes", len(acknowledged), len(found))
	}
	if _, err := watcher.Submit(t.Context(), storage.Command{ID: "last", Kind: "other"}); err != nil {
		t.Error(err)
	}
}
