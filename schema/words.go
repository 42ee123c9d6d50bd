package schema

import (
	"fmt"
	"regexp"
	"time"
)

var (
	wholeInterval = regexp.MustCompile(`^(` + durationPart.String() + `)+$`)
	wholeQuantity = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$`)
)

// ParseInterval reads a duration with its unit, as a configuration may have it.
func ParseInterval(text string) (time.Duration, error) {
	if !wholeInterval.MatchString(text) {
		return 0, fmt.Errorf("%q is not a duration such as 90s, 24h or 7d", text)
	}
	d, err := interval(text, time.Second)
	if err != nil {
		return 0, fmt.Errorf("%q %w", text, err)
	}
	return d, nil
}

// ParseQuantity reads a number of bytes, as a configuration may have it.
func ParseQuantity(text string) (int64, error) {
	if !wholeQuantity.MatchString(text) {
		return 0, fmt.Errorf("%q is not a size such as 100Gi or 1048576", text)
	}
	n, err := quantity(text)
	if err != nil {
		return 0, fmt.Errorf("%q %w", text, err)
	}
	return n, nil
}
