package lease

import (
	"strings"
	"testing"
	"time"
)

func TestProfilesAreValid(t *testing.T) {
	t.Parallel()
	for _, name := range Profiles() {
		timing, ok := OfProfile(name)
		if err := timing.Validate(); !ok || err != nil {
			t.Errorf("profile %s: %v", name, err)
		}
	}
	if _, ok := OfProfile("other"); ok {
		t.Error("there is a profile \"other\"")
	}
}

func TestValidateNamesFieldsAndValues(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Timing)
		want   []string
	}{
		"lease too short":       {func(x *Timing) { x.LeaseDuration = 40 * time.Second }, []string{"lease_duration 40s", "heartbeat_interval 15s", "at least 44.29s"}},
		"ttl too short":         {func(x *Timing) { x.NodeRegistrationTTL, x.LeaseDuration = 47*time.Second, 46*time.Second }, []string{"node_registration_ttl 47s", "stop_timeout 5s"}},
		"ttl below lease":       {func(x *Timing) { x.NodeRegistrationTTL = time.Minute }, []string{"node_registration_ttl 1m0s is not above lease_duration 1m0s"}},
		"acknowledge too short": {func(x *Timing) { x.AcknowledgeTimeout = 15 * time.Second }, []string{"acknowledge_timeout 15s", "query_timeout 5s"}},
		"drain too short":       {func(x *Timing) { x.DrainTimeout = 20 * time.Second }, []string{"drain_timeout 20s"}},
		"query above heartbeat": {func(x *Timing) { x.QueryTimeout = 15 * time.Second }, []string{"query_timeout 15s is not below heartbeat_interval 15s"}},
		"two at once":           {func(x *Timing) { x.HeartbeatInterval, x.SettleWindow = 0, -1 }, []string{"heartbeat_interval is 0s", "settle_window is -1ns"}},
	} {
		timing := Default()
		c.change(&timing)
		err := timing.Validate()
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", name, err, want)
			}
		}
	}
}

// TestHolderIsDoneBeforeItsLeaseIsFreed computes the proof sketch of the package comment for the
// worst clock rates and the largest undetected step.
func TestHolderIsDoneBeforeItsLeaseIsFreed(t *testing.T) {
	t.Parallel()
	for _, timing := range []Timing{Default(), Fast()} {
		for _, d := range []time.Duration{timing.LeaseDuration, timing.NodeRegistrationTTL, timing.AcknowledgeTimeout, timing.DrainTimeout} {
			slow, quick := 1-maxRateDifference/2, 1+maxRateDifference/2
			done := float64(timing.ValidFor(d))/slow + float64(timing.Wakeup)
			freed := float64(d-timing.ClockStep) / quick
			if done > freed {
				t.Errorf("%v: the holder may be done at %v, the judge frees at %v", d, time.Duration(done), time.Duration(freed))
			}
		}
	}
}

func TestForceAfterIsNeverBeforeSelfFencing(t *testing.T) {
	t.Parallel()
	timing := Default()
	if got := timing.ForceAfter(time.Second); got != timing.NodeRegistrationTTL {
		t.Errorf("a short drain is forced after %v, want the node TTL", got)
	}
	if got, least := timing.ForceAfter(10*time.Minute), 10*time.Minute+timing.StopTimeout; got <= least {
		t.Errorf("a long drain is forced after %v, want more than %v", got, least)
	}
}
