package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/postgres"
)

// The environment of a keeper: the store's URL, its name, the pause between two effects of a unit, and "yes" if it never
// leads.
const (
	keeperEnv       = "DRILL_KEEPER"
	keeperNameEnv   = "DRILL_KEEPER_NAME"
	keeperPauseEnv  = "DRILL_KEEPER_PAUSE"
	keeperFollowEnv = "DRILL_KEEPER_FOLLOW"
)

// kept is the keyed daemon of keepers.
const kept = daemon.ID("drill:kept")

// keepingTable is what keepers write to.
const keepingTable = `CREATE TABLE keeping (seq bigserial PRIMARY KEY, key text NOT NULL, generation bigint NOT NULL, node text NOT NULL)`

// StartKeeper starts a keeper with that pause between two effects of a unit.
func (c *Cluster) StartKeeper(name string, pause time.Duration, env ...string) *Node {
	c.T.Helper()
	self, err := os.Executable()
	if err != nil {
		c.T.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), keeperEnv+"="+c.URL, keeperNameEnv+"="+name, keeperPauseEnv+"="+pause.String()), env...)
	return c.launch(name, cmd)
}

// Keeper runs the process as a program that embeds a coordinator and does not return, if it was started as one. It runs
// units with keys. Each writes a row into the table keeping when it starts, and more from time to time, each in a fenced
// transaction.
func Keeper() {
	url := os.Getenv(keeperEnv)
	if url == "" {
		return
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := keep(ctx, url)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func keep(ctx context.Context, url string) error {
	pause, err := time.ParseDuration(os.Getenv(keeperPauseEnv))
	if err != nil {
		return err
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	cfg.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := postgres.OpenConfig(ctx, postgres.Config{URL: url, MaxConns: 8})
	if err != nil {
		return err
	}
	defer store.Close()
	c, err := coordinator.New(store, coordinator.Config{
		Node: node.Identity{Name: os.Getenv(keeperNameEnv)}, Profile: coordinator.ProfileFast, NeverLead: os.Getenv(keeperFollowEnv) == "yes",
	})
	if err != nil {
		return err
	}
	if err := c.Register(daemon.Spec{ID: kept, Instances: daemon.Keyed, MaxFailures: -1}, &keeper{store, pool, pause}); err != nil {
		return err
	}
	return c.Run(ctx)
}

// keeper is the agent of keepers.
type keeper struct {
	store *postgres.Store
	pool  *pgxpool.Pool
	pause time.Duration
}

// Run writes until the run ends. As in a writer, an effect is not interrupted.
func (k *keeper) Run(ctx context.Context, a *daemon.Assignment) error {
	whole := context.WithoutCancel(ctx)
	for {
		err := k.store.InTx(whole, k.pool, a.Fence(), func(tx pgx.Tx) error {
			_, err := tx.Exec(whole, `INSERT INTO keeping (key, generation, node) VALUES ($1, $2, $3)`, a.Key, a.Generation, a.Node)
			return err
		})
		if errors.Is(err, daemon.ErrStale) {
			fmt.Printf("refused %s\n", a.Fence())
		}
		if err != nil {
			return err
		}
		pause := time.NewTimer(k.pause/2 + rand.N(k.pause))
		select {
		case <-pause.C:
		case <-a.Draining():
			pause.Stop()
			return nil
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		}
	}
}
