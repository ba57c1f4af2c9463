package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/storage/postgres"
)

// Times are read as the server writes them, whatever the zone of its sessions is.
func TestTimesOfAnyZone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, newStage(t).url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for _, zone := range []string{"UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "Pacific/Kiritimati"} {
		if _, err := conn.Exec(ctx, "select set_config('timezone', $1, false)", zone); err != nil {
			t.Fatal(err)
		}
		for _, want := range []time.Time{
			time.Date(2026, 2, 28, 23, 59, 59, 999_999_000, time.UTC),
			time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC),
			time.Date(2026, 7, 1, 0, 0, 0, 120_000_000, time.UTC),
			time.Date(1883, 1, 1, 12, 0, 0, 1_000, time.UTC), // local mean time: the zone has seconds
		} {
			var text string
			if err := conn.QueryRow(ctx, "select $1::timestamptz::text", want).Scan(&text); err != nil {
				t.Fatal(err)
			}
			if got, err := postgres.ParseTime(text); err != nil || got != want {
				t.Errorf("%s: %q is %v, %v; want %v", zone, text, got, err, want)
			}
		}
	}
}

func TestNoTime(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "-", "+00", "2026-07-01", "2026-07-01 +00", "2026-07-01 10:00:00", "2026-07-01T10:00:00+00", "2026-07-01 10:00:00Z",
		"2026-07-01 10:00:00 +00", "2026-13-01 10:00:00+00", "2026-07-01 10:00:00+00:00:00:00", "10000-01-01 00:00:00+00",
		"0044-03-15 12:00:00+00 BC", "infinity", "-infinity", "01/07/2026 10:00:00+00",
	} {
		if at, err := postgres.ParseTime(text); err == nil || !at.IsZero() {
			t.Errorf("%q is %v, %v; want an error", text, at, err)
		}
	}
}
