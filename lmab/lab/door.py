from __future__ import annotations
def enter(main):
    main()
