//go:build planted

package planted

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// caught says which ordinary test of which package misses each rule.
var caught = map[string]struct{ pkg, test string }{
	AnswerBeforeDurable:   {"daemon/queue", "TestHole03RetriedSubmit|TestDeposedBrokerAcknowledgesNothing"},
	AnswerOvertakes:       {"daemon/queue", "TestNothingIsOvertaken"},
	AnswerWithoutTrust:    {"daemon/queue", "TestTrustEndsMeanwhile"},
	FloorNotReported:      {"daemon/queue", "TestGenerationsAndStores"},
	StaleClaimHonoured:    {"daemon/queue", "TestHole08StaleClaims"},
	SoftDurableClaim:      {"daemon/queue", "TestDurableClaims"},
	ClaimNotWritten:       {"daemon/queue", "TestPoisonJob"},
	NewClaimsForRepeat:    {"daemon/queue", "TestHole04RepeatedClaimCall"},
	DeliveriesUnbounded:   {"daemon/queue", "TestRelease"},
	AttemptAtClaim:        {"daemon/queue", "TestHole04JobsDoNotVanish"},
	UndeliveredCounts:     {"daemon/queue", "TestHole04LostPayload"},
	DeadBeforeDurable:     {"daemon/queue", "TestDeadWhenDurable"},
	NoFreshTimeout:        {"daemon/queue", "TestFreshTimeout"},
	LostClaimRefused:      {"daemon/queue", "TestAdoption"},
	ReclaimedJobAdopted:   {"daemon/queue", "TestAdoption"},
	TokenUnproven:         {"daemon/queue", "TestForgedTokens"},
	OwnClockOnly:          {"daemon/queue", "TestHole12ClocksOfNodes"},
	DedupForEver:          {"daemon/queue", "TestSettingsChange"},
	CheckThenReplace:      {"storage/blob/dir", "TestConformance"},
	ReplaceWithoutVersion: {"storage/blob/dir", "TestConformance"},
	LockOnStoreClock:      {"coordinator/lock", "TestStepForwardGivesNoLockAway"},
	LeaveWithoutUnitLocks: {"storage/postgres", "TestLeaveActsOnUnitsAsTheyAre"},
}

// TestPlanted breaks the rules of [QueueBugs] and [StoreBugs] one at a time under ordinary tests, which must fail, and
// must not without.
func TestPlanted(t *testing.T) {
	t.Parallel()
	only := os.Getenv("EMITD_TEST_PLANTED")
	binaries := map[string]string{}
	for _, bug := range slices.Concat(QueueBugs(), StoreBugs()) {
		if by := caught[bug.Name]; binaries[by.pkg] == "" {
			binaries[by.pkg] = build(t, by.pkg)
		}
	}
	for _, bug := range slices.Concat(QueueBugs(), StoreBugs()) {
		if only != "" && bug.Name != only {
			continue
		}
		t.Run(bug.Name, func(t *testing.T) {
			t.Parallel()
			by := caught[bug.Name]
			if out, err := run(by.pkg, binaries[by.pkg], by.test, ""); err != nil {
				t.Fatalf("%s fails without the bug, too: %v\n%s", by.test, err, out)
			}
			out, err := run(by.pkg, binaries[by.pkg], by.test, bug.Name)
			if err == nil || !strings.Contains(out, "--- FAIL") {
				t.Fatalf("%s does not catch it: %s: %v\n%s", by.test, bug.Breaks, err, out)
			}
		})
	}
}

// build makes the test binary of a package.
func build(t *testing.T, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.exe")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-tags", "planted", "-c", "-o", path, "./"+pkg)
	cmd.Dir = filepath.Join("..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the tests of %s: %v\n%s", pkg, err, out)
	}
	return path
}

func run(pkg, binary, test, bug string) (string, error) {
	cmd := exec.Command(binary, "-test.timeout=1m", "-test.run=^("+test+")$")
	cmd.Dir = filepath.Join("..", "..", filepath.FromSlash(pkg))
	if bug != "" {
		cmd.Env = append(os.Environ(), Variable+"="+bug)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
