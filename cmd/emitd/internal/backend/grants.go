package backend

import (
	"maps"
	"slices"
	"strings"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
	outboxpg "github.com/emitd/emitd/outbox/postgres"
	"github.com/emitd/emitd/storage/postgres"
)

// Grants returns the statements that give roles the rights they need on the tables of a store or of the
// outbox. The key of each role is its purpose. Without roles the statements are comments, with role names
// that state the purpose. For a database without roles there are no statements.
func Grants(cfg config.Config, outbox bool, roles map[string]string) (string, error) {
	address, kinds, print := cfg.Store.URL, []string{"app", "node", "reader"}, storeGrants
	if outbox {
		address, kinds, print = cfg.OutboxURL(), []string{"publisher", "reader", "relay"}, outboxGrants
	}
	if !strings.HasPrefix(scheme(address), "postgres") {
		if len(roles) > 0 {
			return "", fault.New(fault.Usage, "--grant is only for Postgres: this kind of store has no roles")
		}
		return "", nil
	}
	for _, kind := range slices.Sorted(maps.Keys(roles)) {
		if !slices.Contains(kinds, kind) || roles[kind] == "" {
			return "", fault.New(fault.Usage, "--grant %s=%s is not a known purpose, want %s=ROLE", kind, roles[kind], strings.Join(kinds, "=ROLE, "))
		}
	}
	if len(roles) > 0 {
		return asUsage(print(cfg, roles))
	}
	roles = map[string]string{}
	for _, kind := range kinds {
		roles[kind] = "emitd_" + kind
	}
	text, err := asUsage(print(cfg, roles))
	if err != nil {
		return "", err
	}
	return "\n-- The rights that the roles of programs need, and no more; --grant " + kinds[0] + "=NAME prints them for one of your roles.\n-- " +
		strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n-- ") + "\n", nil
}

// asUsage turns an error of a statement's generator into a fault.
func asUsage(text string, err error) (string, error) {
	if err != nil {
		return "", fault.New(fault.Usage, "migrate get: %w", err)
	}
	return text, nil
}

func storeGrants(cfg config.Config, roles map[string]string) (string, error) {
	return postgres.GrantSQL(postgresConfig(Options{Config: cfg}), postgres.Roles{Node: roles["node"], App: roles["app"], Reader: roles["reader"]})
}

func outboxGrants(cfg config.Config, roles map[string]string) (string, error) {
	return outboxpg.GrantSQL(postgresOutboxConfig(Options{Config: cfg}), outboxpg.Roles{
		Relay: roles["relay"], Publisher: roles["publisher"], Reader: roles["reader"],
	})
}
