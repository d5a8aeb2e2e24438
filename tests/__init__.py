import mugrpo as mugrpo  # before conftest imports torch: bounds how long its threads spin
