//go:build planted

package owner

import "slices"

const plantable = true

var (
	planted Bug
	asked   bool
)

// Plant switches exactly one bug on, "" none. It is of the process; machines must not run meanwhile.
func Plant(b Bug) {
	if b != "" && !slices.Contains(Bugs(), b) {
		panic("owner: no bug is named " + string(b))
	}
	planted, asked = b, false
}

// Asked reports whether the code came by the planted bug.
func Asked() bool { return asked }

func bug(b Bug) bool {
	if b != planted {
		return false
	}
	asked = true
	return true
}
