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
	durationPart  = regexp.MustCompile(`([0-9]+(?:\.[0-9]+)?)(d|h|ms|m|s)`)
	wholeInterval = regexp.MustCompile(`^(` + durationPart.String() + `)+$`)
	wholeQuantity = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$`)
)

// ParseInterval parses a duration with units, in the format of the configuration.
func ParseInterval(text string) (time.Duration, error) {
	return parseAs("a duration such as 90s, 24h or 7d", wholeInterval, seconds, text)
}

// ParseQuantity parses a number of bytes, in the format of the configuration.
func ParseQuantity(text string) (int64, error) {
	return parseAs("a size such as 100Gi or 1048576", wholeQuantity, quantity, text)
}

// parseAs checks the form of a text and converts it. For a configuration, the schema checks the form.
func parseAs[T any](what string, form *regexp.Regexp, convert func(any) (T, error), text string) (v T, err error) {
	if !form.MatchString(text) {
		return v, fmt.Errorf("%q is not %s", text, what)
	}
	if v, err = convert(text); err != nil {
		err = fmt.Errorf("%q %w", text, err)
	}
	return v, err
}

// The longest interval and the largest size. Sums of larger values could overflow.
const (
	maxInterval = 100 * 365 * 24 * time.Hour
	largestSize = 1 << 60
)

var (
	errTooLong = errors.New("is longer than 100 years")
	errTooMany = errors.New("is more than 1 EiB")
)

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

// number converts a number in a document, or a default of the schema.
func number(v any) float64 {
	switch v := v.(type) {
	case int:
		return float64(v)
	case int64:
		return float64(v)
	}
	return v.(float64)
}

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
	parts := wholeQuantity.FindStringSubmatch(s)
	if len(parts[1]) > 40 {
		return 0, errTooMany
	}
	n, _ := new(big.Rat).SetString(parts[1]) // a number, by wholeQuantity
	n.Mul(n, big.NewRat(quantityUnits[parts[2]], 1))
	if n.Cmp(big.NewRat(largestSize, 1)) > 0 {
		return 0, errTooMany
	}
	whole, rest := new(big.Int).QuoRem(n.Num(), n.Denom(), new(big.Int))
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
		// The zero time would mean that the suspension has no end. JSON has only the years 0 to
		// 9999. The offset of a time zone may lead out of them.
		if t = t.UTC(); err == nil && !t.IsZero() && t.Year() >= 0 && t.Year() <= 9999 {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("is not a valid time: %q", text)
}
