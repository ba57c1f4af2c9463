package schedule

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the tests must not depend on the machine
)

const layout = "2006-01-02 15:04:05 MST"

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func mustCron(t *testing.T, line, zone string) Schedule {
	t.Helper()
	s, err := Cron(line, zone)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustEvery(t *testing.T, d time.Duration) Schedule {
	t.Helper()
	s, err := Every(d)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Each line names what follows a moment of local time, as local times.
func TestCronNext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		line, zone, after string
		want              []string
	}{
		"each day at three":        {"0 3 * * *", "", "2026-01-31 02:59:59 UTC", []string{"2026-01-31 03:00:00 UTC", "2026-02-01 03:00:00 UTC"}},
		"a due time is not itself": {"0 3 * * *", "", "2026-01-31 03:00:00 UTC", []string{"2026-02-01 03:00:00 UTC"}},
		"a fraction after it":      {"* * * * *", "", "2026-01-31 03:00:01 UTC", []string{"2026-01-31 03:01:00 UTC"}},
		"working days":             {"30 8 * * 1-5", "", "2026-01-02 09:00:00 UTC", []string{"2026-01-05 08:30:00 UTC"}},
		"either day suffices":      {"0 0 13 * 5", "", "2026-02-10 00:00:00 UTC", []string{"2026-02-13 00:00:00 UTC", "2026-02-20 00:00:00 UTC"}},
		"names":                    {"0 0 1 jan *", "", "2026-01-02 00:00:00 UTC", []string{"2027-01-01 00:00:00 UTC"}},
		"a leap day":               {"0 0 29 2 *", "", "2096-03-01 00:00:00 UTC", []string{"2104-02-29 00:00:00 UTC"}},
		"hourly":                   {"@hourly", "", "2026-01-31 23:30:00 UTC", []string{"2026-02-01 00:00:00 UTC"}},
		"weekly":                   {"@weekly", "", "2026-01-31 23:30:00 UTC", []string{"2026-02-01 00:00:00 UTC", "2026-02-08 00:00:00 UTC"}},
		"a zone":                   {"0 3 * * *", "Europe/Berlin", "2026-01-31 12:00:00 CET", []string{"2026-02-01 03:00:00 CET"}},

		// Clocks are set from 02:00 CET to 03:00 CEST on 29 March, and from 03:00 CEST to 02:00 CET on 25 October.
		"a skipped time comes at the end of the gap": {"30 2 * * *", "Europe/Berlin", "2026-03-28 12:00:00 CET", []string{
			"2026-03-29 03:00:00 CEST", "2026-03-30 02:30:00 CEST",
		}},
		"skipped times come once": {"*/20 2 * * *", "Europe/Berlin", "2026-03-28 12:00:00 CET", []string{
			"2026-03-29 03:00:00 CEST", "2026-03-30 02:00:00 CEST",
		}},
		"a skipped time and the end of the gap are one": {"0 2,3 * * *", "Europe/Berlin", "2026-03-28 12:00:00 CET", []string{
			"2026-03-29 03:00:00 CEST", "2026-03-30 02:00:00 CEST", "2026-03-30 03:00:00 CEST",
		}},
		"a repeated time comes once": {"30 2 * * *", "Europe/Berlin", "2026-10-24 12:00:00 CEST", []string{
			"2026-10-25 02:30:00 CEST", "2026-10-26 02:30:00 CET",
		}},
		"after its first appearance": {"30 2 * * *", "Europe/Berlin", "2026-10-25 02:45:00 CEST", []string{"2026-10-26 02:30:00 CET"}},
		"after its second":           {"30 2 * * *", "Europe/Berlin", "2026-10-25 02:45:00 CET", []string{"2026-10-26 02:30:00 CET"}},
		"every hour passes a gap": {"30 * * * *", "Europe/Berlin", "2026-03-29 00:45:00 CET", []string{
			"2026-03-29 01:30:00 CET", "2026-03-29 03:30:00 CEST",
		}},
		"every hour comes twice": {"30 * * * *", "Europe/Berlin", "2026-10-25 01:45:00 CEST", []string{
			"2026-10-25 02:30:00 CEST", "2026-10-25 02:30:00 CET", "2026-10-25 03:30:00 CET",
		}},
		"every twenty minutes passes a gap": {"*/20 * * * *", "Europe/Berlin", "2026-03-29 01:40:00 CET", []string{"2026-03-29 03:00:00 CEST"}},
		"every second hour": {"0 */2 * * *", "Europe/Berlin", "2026-10-25 00:30:00 CEST", []string{
			"2026-10-25 02:00:00 CEST", "2026-10-25 02:00:00 CET", "2026-10-25 04:00:00 CET",
		}},
		"half an hour is skipped": {"15 2 * * *", "Australia/Lord_Howe", "2026-10-03 12:00:00 +1030", []string{
			"2026-10-04 02:30:00 +11", "2026-10-05 02:15:00 +11",
		}},
		"half an hour is repeated": {"45 1 * * *", "Australia/Lord_Howe", "2026-04-04 12:00:00 +11", []string{
			"2026-04-05 01:45:00 +11", "2026-04-06 01:45:00 +1030",
		}},
		"a day is skipped": {"0 12 * * *", "Pacific/Apia", "2011-12-29 11:00:00 -10", []string{
			"2011-12-29 12:00:00 -10", "2011-12-31 00:00:00 +14", "2011-12-31 12:00:00 +14",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := mustCron(t, c.line, c.zone)
			at := parse(t, c.after, s)
			for _, want := range c.want {
				if at = s.Next(at); s.Local(at).Format(layout) != want {
					t.Fatalf("got %s, want %s", s.Local(at).Format(layout), want)
				}
			}
		})
	}
}

// parse reads a local time. Its zone tells two equal local times apart.
func parse(t *testing.T, text string, s Schedule) time.Time {
	t.Helper()
	at, err := time.ParseInLocation(layout[:19], text[:19], s.Local(time.Now()).Location())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []time.Duration{0, time.Hour, -time.Hour} {
		if s.Local(at.Add(d)).Format(layout) == text {
			return at.Add(d)
		}
	}
	t.Fatalf("there is no %s", text)
	return at
}

// Over years in zones with all kinds of changes: due times grow, a line with given hours comes once on each local day
// that has a morning, and a line for each minute leaves out none.
func TestCronOverYears(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "America/Sao_Paulo"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			z := zone(t, name)
			begin := time.Date(2016, 1, 1, 0, 0, 0, 0, z)
			for _, line := range []string{"30 2 * * *", "0 0 * * *", "59 23 * * *", "30 1 * * *"} {
				s := mustCron(t, line, name)
				at, days := begin.Add(-1), map[string]int{}
				for {
					next := s.Next(at)
					if !next.After(at) {
						t.Fatalf("%s: %v follows %v", line, next, at)
					}
					if at = next; at.After(begin.AddDate(10, 0, -1)) {
						break
					}
					days[s.Local(at).Format(time.DateOnly)]++
				}
				for day := begin; day.Before(begin.AddDate(10, 0, -1)); day = day.AddDate(0, 0, 1) {
					if n := days[day.Format(time.DateOnly)]; n != 1 {
						t.Errorf("%s comes %d times on %s", line, n, day.Format(time.DateOnly))
					}
				}
			}
			s := mustCron(t, "*/30 * * * *", name)
			for at := begin.UTC(); at.Before(begin.AddDate(1, 0, 0)); {
				next := s.Next(at)
				if next.Sub(at) != 30*time.Minute {
					t.Fatalf("%v follows %v", s.Local(next), s.Local(at))
				}
				at = next
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, zone, message string }{
		{"", "", "empty"},
		{"0 3 * *", "", "expected exactly 5 fields"},
		{"0 0 3 * * *", "", "expected exactly 5 fields"},
		{"60 * * * *", "", "above maximum"},
		{"* * * * 7", "", "above maximum"},
		{"a * * * *", "", "failed to parse"},
		{"*/0 * * * *", "", "positive number"},
		{"0 0 30 2 *", "", "never comes"},
		{"0 0 31 2,4,6 *", "", "never comes"},
		{", * * * *", "", "never comes"},
		{"@reboot", "", "unrecognized"},
		{"@every 1h", "", "is an interval"},
		{"TZ=0", "", "names a time zone"},
		{"CRON_TZ=Europe/Berlin 0 3 * * *", "", "names a time zone"},
		{"0 3 * * *", "Europe/Berlyn", "is not known"},
		{"0 3 * * *", "Local", "differs from node to node"},
	} {
		if _, err := Cron(c.line, c.zone); err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%q in %q: %v, want %q in it", c.line, c.zone, err, c.message)
		}
	}
	for _, d := range []time.Duration{0, -time.Hour, time.Second - 1} {
		if _, err := Every(d); err == nil || !strings.Contains(err.Error(), "want 1s or more") {
			t.Errorf("%v: %v", d, err)
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]Schedule{
		"every 1h":                           mustEvery(t, time.Hour),
		"every 1m30s":                        mustEvery(t, 90*time.Second),
		"every 10m":                          mustEvery(t, 10*time.Minute),
		"cron 0 3 * * * UTC":                 mustCron(t, " 0  3 * * *", ""),
		"cron @daily Europe/Berlin":          mustCron(t, "@daily", "Europe/Berlin"),
		"":                                   {},
		"cron 0 3 * * 1-5 America/Sao_Paulo": mustCron(t, "0 3 * * 1-5", "America/Sao_Paulo"),
	} {
		if s.String() != want || s.IsZero() != (want == "") {
			t.Errorf("%q, want %q", s, want)
		}
	}
}

// The newest due times are the same as those found by going through all of them.
func TestDue(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, s := range []Schedule{
		mustEvery(t, time.Second), mustEvery(t, 7*time.Minute), mustEvery(t, 100*time.Hour),
		mustCron(t, "* * * * *", ""), mustCron(t, "30 2 * * *", "Europe/Berlin"), mustCron(t, "0 0 1 * *", ""), mustCron(t, "0 0 29 2 *", ""),
	} {
		for _, passed := range []time.Duration{0, time.Second, time.Minute, time.Hour, 25 * time.Hour, 40 * day, 400 * day} {
			for _, n := range []int{1, 3} {
				now := begin.Add(passed)
				var all []time.Time
				for at := s.Next(begin); !at.After(now) && len(all) < MaxCounted+n; at = s.Next(at) {
					all = append(all, at)
				}
				if len(all) == MaxCounted+n {
					continue // see TestDueIsBounded
				}
				got := s.Due(begin, now, n)
				kept := min(n, len(all))
				if len(got.Newest) != kept || got.Earlier != len(all)-kept {
					t.Fatalf("%s over %v: %d newest and %d earlier of %d", s, passed, len(got.Newest), got.Earlier, len(all))
				}
				for i, at := range all[len(all)-kept:] {
					if !got.Newest[i].Equal(at) {
						t.Fatalf("%s over %v: %v, want %v", s, passed, got.Newest[i], at)
					}
				}
				if got.Earlier > 0 != !got.First.IsZero() || got.Earlier > 0 && !got.First.Equal(all[0]) {
					t.Fatalf("%s over %v: the first is %v, want %v", s, passed, got.First, all[0])
				}
			}
		}
	}
}

// Ten years without a run cost little, and the count has a bound.
func TestDueIsBounded(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := begin.AddDate(10, 0, 0)
	for _, s := range []Schedule{mustEvery(t, time.Second), mustCron(t, "* * * * *", "Europe/Berlin")} {
		got := s.Due(begin, now, 10)
		if len(got.Newest) != 10 || !got.Newest[9].Equal(now) || got.Earlier != MaxCounted {
			t.Errorf("%s: %d newest up to %v, %d earlier", s, len(got.Newest), got.Newest[len(got.Newest)-1], got.Earlier)
		}
	}
}
