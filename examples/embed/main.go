// Embed runs a coordinator inside a program: an agent with four instances, each of which counts in its
// own row of the program's own table, and the hooks that most programs want. Start it several times on
// one file and kill one of the processes: the others continue the counters where they stopped.
//
//	go run ./examples/embed -db /tmp/embed.db
package main

import (
	"context"
	"database/sql"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/sweeper"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/sqlite"
)

func main() {
	log.SetFlags(log.Lmicroseconds)
	path := flag.String("db", "embed.db", "the SQLite file that all processes share")
	name := flag.String("name", "", "the node's name; default: the host's")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *path, *name)
	cancel()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, path, name string) error {
	store, err := sqlite.Open(ctx, path)
	if err != nil {
		return err
	}
	defer store.Close()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, table); err != nil {
		return err
	}

	c, err := coordinator.New(store, coordinator.Config{
		Node:    node.Identity{Name: name},
		Profile: coordinator.ProfileFast,
		Hooks: coordinator.Hooks{
			OnLeaderElected:  func(_ context.Context, t node.Term) { log.Printf("elected: term %d", t.Ordinal) },
			OnLeaderLost:     func(t node.Term, why node.LossReason) { log.Printf("lost: term %d, %s", t.Ordinal, why) },
			OnNodeRegistered: func(m node.Member) { log.Printf("joined: %s", m.Name) },
			OnNodeRemoved:    func(m node.Member, why string) { log.Printf("left: %s, %s", m.Name, why) },
		},
	})
	if err != nil {
		return err
	}
	if err := c.Register(daemon.Spec{ID: "acme:counter", Instances: 4}, counter{store, db}); err != nil {
		return err
	}
	// One of the nodes removes what nobody needs any more: old events, the rows of nodes that left.
	if err := c.RegisterBuiltin(sweeper.Spec(), sweeper.New(c.SweepTasks(coordinator.Retention{}), sweeper.Config{})); err != nil {
		return err
	}
	return c.Run(ctx) // nil after a clean stop because ctx ended
}

// table is the program's own table, in the same file as the cluster's. Each row also names the run that
// wrote it.
const table = `CREATE TABLE IF NOT EXISTS counter (unit TEXT PRIMARY KEY, n INTEGER NOT NULL, generation INTEGER NOT NULL)`

// counter counts in one row per unit.
type counter struct {
	store *sqlite.Store
	db    *sql.DB
}

// Run reads the counter. When Run begins, the unit's fence is stamped with this run's generation. So
// earlier runs can no longer write, and what it reads stays valid.
func (c counter) Run(ctx context.Context, a *daemon.Assignment) error {
	var n int
	err := c.db.QueryRowContext(ctx, `SELECT n FROM counter WHERE unit = ?`, a.Unit.String()).Scan(&n)
	if err != nil && err != sql.ErrNoRows {
		return err
	}
	log.Printf("%s: generation %d begins at %d", a.Unit, a.Generation, n)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done(): // stop now: ownership has ended
			return ctx.Err()
		case <-a.Draining(): // finish what is in flight, then return
			log.Printf("%s: generation %d ends at %d", a.Unit, a.Generation, n)
			return nil
		case <-tick.C:
			n++
			// The fence is checked in the transaction that has the effect. A later run of this
			// unit makes it fail with daemon.ErrStale, which ends this run.
			err := c.store.InTx(ctx, c.db, a.Fence(), func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO counter (unit, n, generation) VALUES (?, ?, ?)
					ON CONFLICT (unit) DO UPDATE SET n = excluded.n, generation = excluded.generation`, a.Unit.String(), n, a.Generation)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
}
