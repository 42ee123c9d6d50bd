package load

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema"
)

var (
	wholeInterval = regexp.MustCompile(`^(` + durationPart.String() + `)+$`)
	wholeQuantity = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$`)
)

// ParseInterval parses a duration with units, in the format of the configuration.
func ParseInterval(text string) (time.Duration, error) {
	if !wholeInterval.MatchString(text) {
		return 0, fmt.Errorf("%q is not a duration such as 90s, 24h or 7d", text)
	}
	d, err := seconds(text)
	if err != nil {
		return 0, fmt.Errorf("%q %w", text, err)
	}
	return d, nil
}

// ParseQuantity parses a number of bytes, in the format of the configuration.
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

// The longest interval and the largest size. Sums of larger ones could overflow.
const (
	maxInterval = 100 * 365 * 24 * time.Hour
	largestSize = 1 << 60
)

var (
	errTooLong = errors.New("is longer than 100 years")
	errTooMany = errors.New("is more than 1 EiB")
)

var durationPart = regexp.MustCompile(`([0-9.]+)(d|h|ms|m|s)`)

var durationUnits = map[string]time.Duration{
	"d": 24 * time.Hour, "h": time.Hour, "m": time.Minute, "s": time.Second, "ms": time.Millisecond,
}

func minutes(v any) (time.Duration, error) { return interval(v, time.Minute) }

func seconds(v any) (time.Duration, error) { return interval(v, time.Second) }

// interval converts an interval of the schema: a number of units, or a duration,
// which may have days.
func interval(v any, unit time.Duration) (time.Duration, error) {
	sum := 0.0
	if s, ok := v.(string); ok {
		for _, part := range durationPart.FindAllStringSubmatch(s, -1) {
			n, err := strconv.ParseFloat(part[1], 64)
			if err != nil {
				return 0, errTooLong
			}
			sum += n * float64(durationUnits[part[2]])
		}
	} else {
		sum = number(v) * float64(unit)
	}
	if sum > float64(maxInterval) {
		return 0, errTooLong
	}
	return time.Duration(math.Round(sum)), nil
}

// number converts a number of a document, or a default of the schema.
func number(v any) float64 {
	switch v := v.(type) {
	case int:
		return float64(v)
	case int64:
		return float64(v)
	case float64:
		return v
	}
	panic("load: not a number")
}

var quantityParts = regexp.MustCompile(`^([0-9.]+)([a-zA-Z]*)$`)

var quantityUnits = map[string]int64{
	"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
}

// quantity converts a number of bytes. Like Kubernetes, it rounds up.
func quantity(v any) (int64, error) {
	s, ok := v.(string)
	if !ok {
		if number(v) > largestSize {
			return 0, errTooMany
		}
		return int64(number(v)), nil
	}
	parts := quantityParts.FindStringSubmatch(s)
	if parts == nil || len(parts[1]) > 40 {
		return 0, errTooMany
	}
	r, ok := new(big.Rat).SetString(parts[1])
	if !ok {
		return 0, errors.New("is not a quantity")
	}
	r.Mul(r, new(big.Rat).SetInt64(quantityUnits[parts[2]]))
	if r.Cmp(new(big.Rat).SetInt64(largestSize)) > 0 {
		return 0, errTooMany
	}
	whole, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	return whole.Int64() + int64(rest.Sign()), nil
}

var errTooHigh = errors.New("is more than a million")

// count converts a number of things.
func count(v any) (int, error) {
	n := number(v)
	if n > 1e6 {
		return 0, errTooHigh
	}
	return int(n), nil
}

// pruneLimit converts a count or a percentage of the schema.
func pruneLimit(v any) (schema.PruneLimit, error) {
	if s, percent := v.(string); percent {
		n, err := strconv.Atoi(strings.TrimSuffix(s, "%"))
		return schema.PrunePercent(n), err
	}
	n, err := count(v)
	return schema.PruneCount(n), err
}

// parseTime reads a time, or a date, which is the beginning of that day in UTC.
func parseTime(v any) (time.Time, error) {
	text := v.(string)
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		t, err := time.Parse(layout, text)
		// The zero time would mean that the suspension has no end. JSON has no other years than
		// these: an offset may lead out of them.
		if t = t.UTC(); err == nil && !t.IsZero() && t.Year() >= 0 && t.Year() <= 9999 {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("is not a valid time: %q", text)
}
