package mem

import (
	"fmt"
	"net/url"
	"time"
)

// ParseURL reads "mem://" with the optional parameter latency, as in "mem://?latency=50ms".
func ParseURL(raw string) (Config, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "mem" || u.Host != "" || (u.Path != "" && u.Path != "/") {
		return Config{}, fmt.Errorf("object store address %q: want mem:// or mem://?latency=50ms", raw)
	}
	var config Config
	for name, values := range u.Query() {
		latency, err := time.ParseDuration(values[0])
		if name != "latency" || err != nil || latency < 0 {
			return Config{}, fmt.Errorf("object store address %q: parameter %q: only latency is known, a duration such as 50ms", raw, name)
		}
		config.Latency = Constant(latency)
	}
	return config, nil
}
