package reconcile

// The plans here are those of a manager that has all sources. To be deleted with the map.
func init() { clear(unsupported) }
