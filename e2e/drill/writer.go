package drill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/postgres"
)

// The environment of a writer: the store's URL, its name, "no" for effects without a fence, and its profile, without
// which it has the timings of Short.
const (
	writerEnv        = "DRILL_WRITER"
	writerNameEnv    = "DRILL_WRITER_NAME"
	writerFenceEnv   = "DRILL_WRITER_FENCE"
	writerProfileEnv = "DRILL_WRITER_PROFILE"
)

// Short returns timings for drills in which many leases must expire: a lease of 1.4 s.
func Short() lease.Timing {
	t := lease.Fast()
	t.HeartbeatInterval, t.QueryTimeout = 250*time.Millisecond, 200*time.Millisecond
	t.LeaseDuration, t.NodeRegistrationTTL = 1400*time.Millisecond, 1800*time.Millisecond
	t.AcknowledgeTimeout, t.DrainTimeout = 2*time.Second, 2*time.Second
	t.StopTimeout, t.LeaderStopTimeout, t.SettleWindow = 300*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond
	return t
}

// Writer runs the process as a program that embeds a coordinator and does not return, if it was started
// as one. Its agent appends numbered rows to a table of its own, each in a fenced transaction, and prints
// each acknowledged row.
func Writer() {
	url := os.Getenv(writerEnv)
	if url == "" {
		return
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := write(ctx, url)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func write(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := postgres.Open(ctx, url)
	if err != nil {
		return err
	}
	defer store.Close()
	cfg := coordinator.Config{Node: node.Identity{Name: os.Getenv(writerNameEnv)}, Profile: os.Getenv(writerProfileEnv)}
	if cfg.Profile == "" {
		cfg.Profile, cfg.Timing = coordinator.ProfileFast, coordinator.Timing(Short())
	}
	c, err := coordinator.New(store, cfg)
	if err != nil {
		return err
	}
	if err := c.Register(daemon.Spec{ID: "drill:writer", MaxFailures: -1}, &appender{store, pool}); err != nil {
		return err
	}
	return c.Run(ctx)
}

// appender appends to the table effect(seq, n, generation).
type appender struct {
	store *postgres.Store
	pool  *pgxpool.Pool
}

// Run reads the last row and appends. It does not interrupt an effect when its run ends, because many
// programs cannot. The fence must ensure that such an effect changes nothing.
func (a *appender) Run(ctx context.Context, as *daemon.Assignment) error {
	var n int64
	if err := a.pool.QueryRow(ctx, `SELECT coalesce(max(n), 0) FROM effect`).Scan(&n); err != nil {
		return err
	}
	whole, unfenced := context.WithoutCancel(ctx), os.Getenv(writerFenceEnv) == "no"
	for {
		select {
		case <-as.Draining():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
		n++
		effect := func(tx pgx.Tx) error {
			<-time.After(10 * time.Millisecond) // the work in flight during which the drill pauses the process
			_, err := tx.Exec(whole, `INSERT INTO effect (n, generation) VALUES ($1, $2)`, n, as.Generation)
			return err
		}
		var err error
		if unfenced {
			err = pgx.BeginFunc(whole, a.pool, effect)
		} else {
			err = a.store.InTx(whole, a.pool, as.Fence(), effect)
		}
		switch {
		case errors.Is(err, daemon.ErrStale):
			fmt.Printf("refused %d\n", as.Generation)
			return err
		case err != nil:
			return err
		}
		fmt.Printf("acknowledged %d %d\n", n, as.Generation)
	}
}
