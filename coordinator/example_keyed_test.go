package coordinator_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

func serveTenant(ctx context.Context, _ string, draining <-chan struct{}) error {
	select {
	case <-draining:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func tenantsOf(ctx context.Context, db *sql.DB) (names []string, err error) {
	rows, err := db.QueryContext(ctx, "select name from tenant")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

// One unit for each tenant of a table.
func ExampleCoordinator_RegisterKeyed() {
	var db *sql.DB // the program's own
	c, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	tenants := daemon.Spec{ID: "acme:tenants", Instances: daemon.Keyed}
	serve := daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
		return serveTenant(ctx, a.Key, a.Draining())
	})
	source := coordinator.KeySource{Units: func(ctx context.Context) ([]string, error) { return tenantsOf(ctx, db) }}
	fmt.Println(c.RegisterKeyed(tenants, serve, source))
	// Output: <nil>
}

// A program adds a key where a tenant signs up.
func Example_keys() {
	ctx, store := context.Background(), memory.Open(memory.Config{})
	added := storage.KeyChange{Daemon: "acme:tenants", Add: []string{"globex"}, Actor: "signup"}
	counts, err := store.ChangeKeys(ctx, added)
	fmt.Println(counts.Added, err)
	// Output: 1 <nil>
}
